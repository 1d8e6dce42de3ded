"""How do weights get from the disk into memory while the engine still imports its code?

They are read once, in order, and thrown away: then they are in the page cache. vLLM maps
safetensors files, so the replicas of a node share these pages, and the second one reads no disk. To
ask the kernel for them (POSIX_FADV_WILLNEED) would copy nothing, but what comes that way is mapped
in small pieces: reading it takes as long as reading a cold disk (`bench/weights.py`). Nothing is
read that would not stay: more than half of the available memory.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

from serving.weights.manifest import scan

_BLOCK = 1024 * 1024
_SAMPLES = 64  # places of a file that are looked at
_SHARE = 0.5  # of the memory available: the engine copies what it reads


def read_ahead(directory: Path, *, available: int | None = None) -> float | None:
    """Read what is not in memory; the seconds it took, None if it does not fit. Raises OSError.

    `available`: bytes of memory that may be had, None: as the system says.
    """
    manifest = scan(directory)
    if available is None:
        available = psutil.virtual_memory().available
    if manifest.size > _SHARE * available:
        return None
    began_s = time.monotonic()
    block = bytearray(_BLOCK)
    for file in manifest.files:
        with (directory / file.name).open("rb", buffering=0) as opened:
            if not _in_memory(opened.fileno(), file.size):
                while opened.readinto(block):
                    pass
    return time.monotonic() - began_s


def _in_memory(descriptor: int, size: int) -> bool:
    """Whether a sample of a file's pages can be read without waiting for the disk."""
    step = max(1, size // _SAMPLES)
    byte = bytearray(1)
    try:
        for offset in range(0, size, step):
            os.preadv(descriptor, [byte], offset, os.RWF_NOWAIT)
    except OSError:  # not there, or the file system does not say
        return False
    return True
