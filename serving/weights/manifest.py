"""Which files make up a model, and are two directories the same model?

The version of a directory is a digest of its files' names, sizes and modification times. Copies
keep all three, so a copy has the version of what it was copied from, and a directory that was
written anew has another one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# Weights in other formats than the one an engine takes if it has the choice.
_SAFETENSORS = ".safetensors"
_OTHER_WEIGHTS = frozenset({".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack"})
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """One file of a model. `name`: relative to the model's directory, with `/`."""

    name: str
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Manifest:
    """The files of a model, by name."""

    files: tuple[ModelFile, ...]

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(file.size for file in self.files)

    @property
    def version(self) -> str:
        """What tells this state of the files from another."""
        facts = [[file.name, file.size, file.mtime_ns] for file in self.files]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def file(self, name: str) -> ModelFile | None:
        """By name; None for any name that is not the model's."""
        return next((file for file in self.files if file.name == name), None)


def scan(directory: Path) -> Manifest:
    """The model in a directory, links followed, hidden files left out. Raises OSError."""
    found = {
        path.relative_to(directory).as_posix(): path
        for path in directory.rglob("*")
        if path.is_file() and not _hidden(path.relative_to(directory).parts)
    }
    files = []
    for name in needed(found):
        facts = found[name].stat()
        files.append(ModelFile(name=name, size=facts.st_size, mtime_ns=facts.st_mtime_ns))
    return Manifest(tuple(files))


def needed(names: Iterable[str]) -> list[str]:
    """Those an engine may read, in order: no second copy of the weights in another format."""
    names = sorted(names)
    if not any(name.endswith(_SAFETENSORS) and "/" not in name for name in names):
        return names
    return [
        name
        for name in names
        if PurePosixPath(name).suffix not in _OTHER_WEIGHTS
        and ("/" not in name or not name.endswith(_SAFETENSORS))
    ]


def is_whole(directory: Path) -> bool:
    """Whether a snapshot has a configuration and all of its weights: one under way does not."""
    if not (directory / "config.json").is_file():
        return False
    try:
        index = json.loads((directory / _INDEX).read_text())
        shards = set(index["weight_map"].values())
    except FileNotFoundError:
        return any(directory.glob(f"*{_SAFETENSORS}")) or any(directory.glob("*.bin"))
    except (OSError, ValueError, KeyError):
        return False
    return all((directory / shard).is_file() for shard in shards)


def safe(name: str) -> bool:
    """Whether a file of this name lands inside the directory it is written to."""
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and not _hidden(path.parts) and "\0" not in name


def _hidden(parts: Iterable[str]) -> bool:
    return any(part.startswith(".") for part in parts)
