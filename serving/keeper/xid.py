"""Which errors of a GPU mean that it is no good any more? NVIDIA's XID numbers in words.

Source: NVIDIA, "XID Errors" (docs.nvidia.com/deploy/xid-errors). Errors that an application causes
itself leave the GPU healthy and are left out, as in NVIDIA's k8s-device-plugin; so are those that
only report what was mended.
"""

from __future__ import annotations

_OF_APPLICATIONS = frozenset({13, 31, 43, 45, 68, 109})
_MENDED = frozenset({63, 92})

_WORDS = {
    48: "double bit ECC error",
    64: "row remapping failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP does not answer",
    120: "GSP error",
    140: "unrecovered ECC error",
}


def xid_fault(number: int) -> str:
    """What is wrong with the GPU, '' if nothing is."""
    if number in _OF_APPLICATIONS | _MENDED:
        return ""
    words = _WORDS.get(number)
    return f"XID {number} ({words})" if words else f"XID {number}"
