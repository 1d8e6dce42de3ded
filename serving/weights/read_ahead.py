"""How do weights get from the disk into memory while the engine still imports its code?

The kernel is told to read the files (posix_fadvise); what is in its page cache already costs
nothing, so the second replica of a node reads no disk. vLLM maps safetensors files, so replicas
share these pages. Nothing is read that would not stay: more than half of the available memory.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

from serving.weights.manifest import scan

_STEP = 64 * 1024 * 1024
_SHARE = 0.5  # of the memory available: the engine copies what it reads


def read_ahead(directory: Path, *, available: int | None = None) -> float | None:
    """Ask for every file; the seconds it took, None if they do not fit. Raises OSError.

    `available`: bytes of memory that may be had, None: as the system says.
    """
    manifest = scan(directory)
    if available is None:
        available = psutil.virtual_memory().available
    if manifest.size > _SHARE * available:
        return None
    began_s = time.monotonic()
    for file in manifest.files:
        with (directory / file.name).open("rb") as opened:
            for offset in range(0, file.size, _STEP):
                os.posix_fadvise(opened.fileno(), offset, _STEP, os.POSIX_FADV_WILLNEED)
    return time.monotonic() - began_s
