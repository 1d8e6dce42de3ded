"""Where does a node keep the models it has fetched, and when may a copy be trusted?

    CACHE/KEY/lock               held by the replica that fetches
    CACHE/KEY/VERSION/           a whole copy; appears by renaming
    CACHE/KEY/VERSION.partial/   on its way: files that are whole, and NAME.part
    CACHE/KEY/VERSION.json       its files and their digests, and the machine's start it was made in

Files are not forced to disk: that would cost as long as writing them. So after the machine has been
started again a copy is read against its digests before it is used.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from cluster.errors import UnavailableError
from serving.weights.manifest import Manifest
from serving.weights.record import Record, boot_id, read_record, write_record

PART = ".part"
_HASHERS = 4


def default_cache() -> Path:
    """$SHARDWISE_HOME/weights, or the user's cache directory."""
    home = os.environ.get("SHARDWISE_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "shardwise") / "weights"


class ModelCache:
    """The copies of one model on this node."""

    def __init__(self, root: Path, key: str) -> None:
        self._folder = root / key

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Whether this process may fetch; the kernel frees the lock of one that dies."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def versions(self) -> list[str]:
        """Whole copies, the newest first."""
        try:
            found = [path for path in self._folder.iterdir() if _is_copy(path)]
        except FileNotFoundError:
            return []
        return [path.name for path in sorted(found, key=_changed_ns, reverse=True)]

    def copy(self, version: str) -> Path:
        """Where the whole copy is or will be."""
        return self._folder / version

    def partial(self, version: str) -> Path:
        """Where one is being made."""
        return self._folder / f"{version}.partial"

    def underway(self) -> list[str]:
        """Versions of which there is a part."""
        try:
            return [path.stem for path in self._folder.glob("*.partial")]
        except OSError:
            return []

    def finished(self, version: str) -> frozenset[str]:
        """Files of an unfinished copy that are whole and verified."""
        folder = self.partial(version)
        return frozenset(
            path.relative_to(folder).as_posix()
            for path in folder.rglob("*")
            if path.is_file() and path.suffix != PART
        )

    def room_for(self, manifest: Manifest) -> None:
        """Raise UnavailableError unless what is missing fits on the disk."""
        folder = self.partial(manifest.version)
        have = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        missing = max(0, manifest.size - have)
        free = shutil.disk_usage(_existing(self._folder)).free
        if missing > free:
            raise no_room(self._folder, missing=missing, free=free)

    def record(self, version: str) -> Record | None:
        """What is known of a copy, begun or whole."""
        return read_record(self._folder / f"{version}.json")

    def begin(self, manifest: Manifest) -> dict[str, str]:
        """Make a directory for a copy; digests of the files that are there from another attempt.

        One that began before the machine's last start is begun anew.
        """
        version = manifest.version
        record = self.record(version)
        if record is None or record.boot != boot_id():
            self.remove(version)
            self.keep(manifest, {})
        self.partial(version).mkdir(parents=True, exist_ok=True)
        record = self.record(version)
        known = {} if record is None else record.digests
        return {name: known[name] for name in self.finished(version) if name in known}

    def keep(self, manifest: Manifest, digests: Mapping[str, str]) -> None:
        """Write down which files are verified."""
        path = self._folder / f"{manifest.version}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(path, Record(manifest=manifest, digests=dict(digests), boot=boot_id()))

    def finish(self, manifest: Manifest, digests: Mapping[str, str]) -> Path:
        """The partial copy is whole: it appears as one, and older copies go."""
        version = manifest.version
        self.keep(manifest, digests)
        self.partial(version).rename(self.copy(version))
        for other in {*self.versions(), *self.underway()} - {version}:
            self.remove(other)
        return self.copy(version)

    def remove(self, version: str) -> None:
        """Forget a copy. An engine that has it open keeps what it has open."""
        shutil.rmtree(self.copy(version), ignore_errors=True)
        shutil.rmtree(self.partial(version), ignore_errors=True)
        (self._folder / f"{version}.json").unlink(missing_ok=True)

    def trusted(self, version: str) -> Path | None:
        """The whole copy, None if there is none or it is not what it was; that one is removed.

        Reads all of it if it was written before the machine's last start.
        """
        copy = self.copy(version)
        if not copy.is_dir():
            return None
        record = self.record(version)
        if record is None or not _sound(copy, record):
            self.remove(version)
            return None
        if record.boot != boot_id():
            self.keep(record.manifest, record.digests)
        return copy


def no_room(folder: Path, *, missing: int, free: int) -> UnavailableError:
    """The error of a full disk."""
    return UnavailableError(
        f"the weights do not fit: {missing:,} bytes are to be written to {folder}, which has "
        f"{free:,} bytes free. Fix: free space there, or set weights.cache_dir to a larger disk."
    )


def file_digest(path: Path) -> str:
    """SHA-256, which processors have instructions for."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sound(copy: Path, record: Record) -> bool:
    files = record.manifest.files
    try:
        if any((copy / file.name).stat().st_size != file.size for file in files):
            return False
        if record.boot == boot_id():
            return True
        with ThreadPoolExecutor(_HASHERS) as hashers:
            found = hashers.map(lambda file: file_digest(copy / file.name), files)
            digests = zip(files, found, strict=True)
            return all(digest == record.digests.get(file.name) for file, digest in digests)
    except OSError:
        return False


def _is_copy(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not path.suffix


def _changed_ns(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())
