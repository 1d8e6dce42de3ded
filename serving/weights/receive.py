"""How is one file received? Chunk after chunk, the next one asked for while this one is written."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from serving.weights.cache import PART, no_room
from serving.weights.choice import chunks
from serving.weights.peers import Chunk, Peers

CHUNK = 8 * 1024 * 1024
_AHEAD = 2  # chunks on their way
_ANSWER_S = 30.0  # to a chunk


class WrongBytesError(Exception):
    """What was received is not what the peer has."""


class Part:
    """A file that is being received: NAME.part until it is whole."""

    def __init__(self, target: Path, *, size: int) -> None:
        self._target = target
        self._part = target.with_name(target.name + PART)
        self._size = size

    @property
    def have(self) -> int:
        """Bytes that are here."""
        try:
            return self._part.stat().st_size
        except FileNotFoundError:
            return 0

    async def receive(
        self, peers: Peers, peer: str, *, key: str, version: str, heard: Callable[[], None]
    ) -> str:
        """Receive what is missing; the file's digest. Raises WrongBytesError, and what a peer does.

        `heard`: called at every chunk.
        """
        name = self._target.relative_to(_root(self._target, version)).as_posix()
        self._target.parent.mkdir(parents=True, exist_ok=True)
        digest = asyncio.ensure_future(peers.digest(peer, key, version, name))
        hasher = await asyncio.to_thread(self._begun)
        todo = chunks(self._size, have=self.have, chunk=CHUNK)
        coming: list[tuple[int, asyncio.Task[Chunk]]] = []
        try:
            while todo or coming:
                while todo and len(coming) < _AHEAD:
                    offset, length = todo.pop(0)
                    read = peers.read(peer, key, version, name, offset=offset, length=length)
                    coming.append((length, asyncio.ensure_future(read)))
                length, task = coming.pop(0)
                async with asyncio.timeout(_ANSWER_S):
                    chunk = await task
                if len(chunk) != length:
                    raise WrongBytesError(f"{peer} gave {len(chunk)} bytes of {name}, not {length}")
                await asyncio.to_thread(self._append, chunk, hasher)
                heard()
            await peers.done(peer, key, name)
            found, expected = hasher.hexdigest(), await self._expected(digest, heard)
        finally:
            for _, task in coming:
                task.cancel()
            digest.cancel()
            await asyncio.gather(digest, *(task for _, task in coming), return_exceptions=True)
        if found != expected:
            self._part.unlink(missing_ok=True)
            raise WrongBytesError(f"{name} from {peer} has the digest {found}, not {expected}")
        self._part.touch()  # an empty file has had no chunk
        self._part.rename(self._target)
        return found

    async def _expected(self, digest: asyncio.Future[str], heard: Callable[[], None]) -> str:
        """The peer reads the whole file for it, once: it lives as long as it takes its time."""
        while not digest.done():
            await asyncio.wait([digest], timeout=1.0)
            heard()
        return await digest

    def _begun(self) -> hashlib._Hash:
        """A hasher that has read what is here."""
        hasher = hashlib.sha256()
        if self.have > self._size:
            self._part.unlink()
        if self.have:
            with self._part.open("rb") as file:
                while block := file.read(1024 * 1024):
                    hasher.update(block)
        return hasher

    def _append(self, chunk: Chunk, hasher: hashlib._Hash) -> None:
        view = chunk.data
        hasher.update(view)
        try:
            with self._part.open("ab", buffering=0) as file:
                while view:
                    view = view[file.write(view) :]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            free = shutil.disk_usage(self._part.parent).free
            raise no_room(self._part.parent, missing=self._size - self.have, free=free) from error


def _root(target: Path, version: str) -> Path:
    return next(path for path in target.parents if path.name == f"{version}.partial")
