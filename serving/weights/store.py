"""What does a node give to others? Files of the models it holds, by model and name.

Models are known by key, and only those are given out that the node's own replicas or the head have
named; of those only the files that belong to the model. A path never comes from another node.
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

from serving.weights.cache import ModelCache, default_cache, file_digest
from serving.weights.choice import READERS, Offer
from serving.weights.door import Address, Door, Read
from serving.weights.manifest import Manifest, scan
from serving.weights.peers import BusyError, NotHeldError

_READS_FOR_S = 5.0  # since its last chunk


class WeightStore:
    """A node's store; Ray actor class.

    `places`: directories of the models it may give, by key; None: what is in the cache of it.
    `host`: this node's address.
    """

    def __init__(self, places: dict[str, str | None], *, cache_dir: str | None, host: str) -> None:
        self._places = {key: _path(place) for key, place in places.items()}
        self._cache = Path(cache_dir) if cache_dir else default_cache()
        self._readers: dict[tuple[str, str, str], float] = {}
        self._readers_lock = threading.Lock()
        self._door = Door(host, self._find)
        self._digests: dict[tuple[str, str, str], asyncio.Task[str]] = {}

    def close(self) -> None:
        """Let nobody read any more."""
        self._door.shutdown()
        self._door.server_close()

    async def hold(self, key: str, place: str | None) -> None:
        """A replica of this node has the model in a directory, or in the cache."""
        self._places[key] = _path(place)

    async def offer(self, key: str) -> Offer | None:
        """What there is of the model, None if nothing."""
        return await asyncio.to_thread(self._offer, key)

    async def manifest(self, key: str, version: str) -> Manifest:
        """The model's files. Raises NotHeldError."""
        return await asyncio.to_thread(self._manifest, key, version)

    async def digest(self, key: str, version: str, name: str) -> str:
        """SHA-256 of a file, computed once. Raises NotHeldError."""
        task = self._digests.get((key, version, name))
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.get_running_loop().create_task(
                asyncio.to_thread(self._digest, key, version, name)
            )
            self._digests[key, version, name] = task
        return await asyncio.shield(task)

    async def address(self) -> Address:
        """Where files are read."""
        return self._door.at

    async def done(self, key: str, name: str, reader: str) -> None:
        """A reader has all it wanted of a file."""
        with self._readers_lock:
            self._readers.pop((key, name, reader), None)

    def _find(self, read: Read) -> Path:
        """The file to be read from, for a reader there is time for. Called by threads."""
        reading = (read.key, read.name, read.reader)
        with self._readers_lock:
            if reading not in self._readers and self._count() >= READERS:
                raise BusyError
            path = self._path(read.key, read.version, read.name)
            self._readers[reading] = time.monotonic()
        return path

    def _count(self) -> int:
        now_s = time.monotonic()
        self._readers = {
            reading: last_s
            for reading, last_s in self._readers.items()
            if now_s - last_s < _READS_FOR_S
        }
        return len(self._readers)

    def _offer(self, key: str) -> Offer | None:
        if key not in self._places:
            return None
        place, cache = self._places[key], ModelCache(self._cache, key)
        if place is not None and place.is_dir():
            manifest = scan(place)
            names = frozenset(file.name for file in manifest.files)
            return self._offered(manifest.version, names, origin=True)
        for version in cache.versions():
            record = cache.record(version)
            if record is not None:
                names = frozenset(file.name for file in record.manifest.files)
                return self._offered(version, names, origin=False)
        for version in cache.underway():
            return self._offered(version, cache.finished(version), origin=False)
        return None

    def _offered(self, version: str, names: frozenset[str], *, origin: bool) -> Offer:
        with self._readers_lock:
            return Offer(version=version, files=names, origin=origin, readers=self._count())

    def _manifest(self, key: str, version: str) -> Manifest:
        if key not in self._places:
            raise NotHeldError(f"model {key}")
        place = self._places[key]
        if place is not None and place.is_dir():
            manifest = scan(place)
            if manifest.version == version:
                return manifest
        record = ModelCache(self._cache, key).record(version)
        if record is None:
            raise NotHeldError(f"model {key} in version {version}")
        return record.manifest

    def _path(self, key: str, version: str, name: str) -> Path:
        """Where a file lies, if it is one of the model's and is here."""
        if self._manifest(key, version).file(name) is not None:
            cache = ModelCache(self._cache, key)
            place = self._places[key]
            if place is not None and place.is_dir() and scan(place).version == version:
                return place / name
            for folder in (cache.copy(version), cache.partial(version)):
                if (folder / name).is_file():
                    return folder / name
        raise NotHeldError(f"file {name} of model {key} in version {version}")

    def _digest(self, key: str, version: str, name: str) -> str:
        record = ModelCache(self._cache, key).record(version)
        known = None if record is None else record.digests.get(name)
        return known or file_digest(self._path(key, version, name))


def _path(place: str | None) -> Path | None:
    return None if place is None else Path(place)
