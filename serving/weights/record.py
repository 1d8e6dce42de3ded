"""What is written down of a copy: its files, their digests, and when it was made."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from serving.weights.manifest import Manifest, ModelFile

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, kw_only=True)
class Record:
    """Of one copy. `digests`: SHA-256 by file; `boot`: the machine's start it was made in."""

    manifest: Manifest
    digests: dict[str, str]
    boot: str


def read_record(path: Path) -> Record | None:
    """None if there is none, or none that can be read."""
    try:
        data = json.loads(path.read_text())
        files = tuple(ModelFile(**file) for file in data["files"])
        return Record(
            manifest=Manifest(files), digests=dict(data["digests"]), boot=str(data["boot"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_record(path: Path, record: Record) -> None:
    """Readers never see half of it."""
    data = {
        "boot": record.boot,
        "files": [asdict(file) for file in record.manifest.files],
        "digests": record.digests,
    }
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(data))
    partial.replace(path)


def boot_id() -> str:
    """This start of the machine, as the kernel names it."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"
