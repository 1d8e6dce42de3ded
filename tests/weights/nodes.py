"""Nodes of a made-up cluster, each with a store and a cache of its own, and what goes wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from serving.weights import receive
from serving.weights.cache import ModelCache
from serving.weights.choice import Offer
from serving.weights.claims import Claims
from serving.weights.door import Read
from serving.weights.fetch import fetch
from serving.weights.manifest import Manifest
from serving.weights.peers import Chunk
from serving.weights.reader import DoorReader
from serving.weights.store import WeightStore

KEY = "model-0"
CHUNK = 1000  # bytes: a file of a few thousand then comes in several
Fault = Callable[[str, str, int, Chunk], Chunk]  # peer, file, offset, what it gave


@dataclass
class Nodes:
    """Stores by node."""

    root: Path
    stores: dict[str, WeightStore] = field(default_factory=dict)
    claims: Claims = field(default_factory=Claims)
    read: dict[str, int] = field(default_factory=dict)  # bytes given, by node
    fault: Fault = lambda peer, name, offset, chunk: chunk
    pause: Callable[[], Awaitable[None]] = field(default=lambda: asyncio.sleep(0))

    def __post_init__(self) -> None:
        self._opened: list[WeightStore] = []

    def close(self) -> None:
        for store in self._opened:
            store.close()

    def cache(self, node: str) -> ModelCache:
        return ModelCache(self.root / node, KEY)

    def add(self, node: str, place: Path | None = None) -> None:
        here = None if place is None else str(place)
        cache = str(self.root / node)
        self.stores[node] = WeightStore({KEY: here}, cache_dir=cache, host="127.0.0.1")
        self._opened.append(self.stores[node])

    async def fetch(self, node: str, *, patience_s: float = 2.0) -> Path | None:
        if node not in self.stores:
            self.add(node)
        others = OthersOf(self, node)
        with self.cache(node).lock() as ours, closing(others):
            assert ours
            return await fetch(
                KEY,
                peers=others,
                cache=self.cache(node),
                node=node,
                patience_s=patience_s,
            )


@dataclass
class OthersOf:
    """The stores of the other nodes, as `fetch.Peers` and `source.Fellows`."""

    nodes: Nodes
    node: str
    readers: dict[str, DoorReader] = field(default_factory=dict)

    async def offers(self, key: str) -> dict[str, Offer]:
        found = {}
        for name, store in list(self.nodes.stores.items()):
            offer = await store.offer(key)
            if name != self.node and offer is not None:
                found[name] = offer
        return found

    async def manifest(self, peer: str, key: str, version: str) -> Manifest:
        return await self.nodes.stores[peer].manifest(key, version)

    async def digest(self, peer: str, key: str, version: str, name: str) -> str:
        return await self.nodes.stores[peer].digest(key, version, name)

    async def read(
        self, peer: str, key: str, version: str, name: str, *, offset: int, length: int
    ) -> Chunk:
        await self.nodes.pause()
        if peer not in self.readers:
            self.readers[peer] = DoorReader(await self.nodes.stores[peer].address())
        read = Read(key, version, name, offset, length, self.node)
        chunk = await self.readers[peer].read(read)
        chunk = self.nodes.fault(peer, name, offset, chunk)
        self.nodes.read[peer] = self.nodes.read.get(peer, 0) + len(chunk)
        return chunk

    def close(self) -> None:
        for reader in self.readers.values():
            reader.close()

    async def done(self, peer: str, key: str, name: str) -> None:
        if peer in self.nodes.stores:
            await self.nodes.stores[peer].done(key, name, self.node)

    async def claim(self, key: str) -> bool:
        return self.nodes.claims.claim(key, self.node, now_s=time.monotonic())


@contextmanager
def small_chunks() -> Iterator[None]:
    before = receive.CHUNK
    receive.CHUNK = CHUNK
    try:
        yield
    finally:
        receive.CHUNK = before


def model(directory: Path, *, shards: int = 3, size: int = 4500, seed: int = 0) -> Path:
    """A directory like a model's: configuration, shards of random bytes, something in a folder."""
    (directory / "1_Pooling").mkdir(parents=True)
    (directory / "config.json").write_text('{"model_type": "made-up"}')
    (directory / "1_Pooling" / "config.json").write_text("{}")
    (directory / "empty.txt").touch()
    random = np.random.default_rng(seed)
    for shard in range(shards):
        (directory / f"model-{shard}.safetensors").write_bytes(random.bytes(size + shard))
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }
