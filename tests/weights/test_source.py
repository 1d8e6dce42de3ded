"""Where a replica's model comes from: this node, another node, the hub, in this order."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cluster.errors import UnavailableError
from serving.weights import hub
from serving.weights.claims import HOLDS_FOR_S, Claims
from serving.weights.read_ahead import read_ahead
from serving.weights.source import Wanted, bring, find_here
from tests.weights.nodes import KEY, Nodes, OthersOf, contents, model

HUB = Wanted(key=KEY, source="org/model")


@dataclass
class Hub:
    """In the place of the hub: whoever downloads gets a snapshot of its own."""

    root: Path
    downloads: list[str] = field(default_factory=list)

    def download(self, repository: str, *, revision: str | None) -> Path:
        self.downloads.append(repository)
        time.sleep(0.3)
        return model(self.root / f"snapshot-{len(self.downloads)}")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with closing(Nodes(tmp_path)) as made:
        yield made


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(tmp_path)
    monkeypatch.setattr(hub, "download", made.download)
    return made


async def replica(nodes: Nodes, node: str, wanted: Wanted) -> Path:
    """As a replica on this node does."""
    if node not in nodes.stores:
        nodes.add(node)
    with closing(OthersOf(nodes, node)) as fellows:
        found = await bring(
            wanted, fellows=fellows, cache=nodes.cache(node), node=node, patience_s=0.0
        )
    if nodes.root / node not in found.parents:
        await nodes.stores[node].hold(wanted.key, str(found))
    return found


async def test_a_directory_that_is_here_is_used_as_it_is(tmp_path: Path) -> None:
    here = model(tmp_path / "here")
    assert await find_here(Wanted(key=KEY, source=str(here))) == here
    assert await find_here(Wanted(key=KEY, source=str(tmp_path / "elsewhere"))) is None


async def test_a_directory_that_no_node_has_is_an_error_that_names_it(nodes: Nodes) -> None:
    with pytest.raises(UnavailableError, match=r"/nowhere/model is not on this node.*Fix"):
        await replica(nodes, "b", Wanted(key=KEY, source="/nowhere/model"))


async def test_two_replicas_that_start_on_a_node_at_once_fetch_once(
    tmp_path: Path, nodes: Nodes
) -> None:
    nodes.add("origin", model(nodes.root / "original"))
    wanted = Wanted(key=KEY, source="/not/here")
    first, second = await asyncio.gather(*(replica(nodes, "b", wanted) for _ in range(2)))
    assert first == second
    assert nodes.read == {"origin": sum(map(len, contents(first).values()))}


async def test_what_was_fetched_before_serves_when_nobody_is_left(
    tmp_path: Path, nodes: Nodes
) -> None:
    nodes.add("origin", model(nodes.root / "original"))
    wanted = Wanted(key=KEY, source="/not/here")
    before = await replica(nodes, "b", wanted)
    del nodes.stores["origin"]
    assert await replica(nodes, "b", wanted) == before


async def test_one_node_downloads_from_the_hub_and_the_others_fetch_from_it(
    nodes: Nodes, origin: Hub
) -> None:
    for node in ("a", "b", "c"):
        nodes.add(node)
    found = await asyncio.gather(*(replica(nodes, node, HUB) for node in ("a", "b", "c")))
    assert origin.downloads == ["org/model"]
    assert len({str(path) for path in found}) == 3
    assert len({tuple(sorted(contents(path).items())) for path in found}) == 1


async def test_the_hub_helps_where_a_transfer_cannot_be_finished(
    nodes: Nodes, origin: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*args: object, **kwargs: object) -> None:
        raise UnavailableError("the peers are gone.")

    monkeypatch.setattr("serving.weights.source.fetch", broken)
    await replica(nodes, "a", HUB)
    assert origin.downloads == ["org/model"]


def test_a_download_is_another_nodes_once_its_claim_is_not_renewed() -> None:
    claims = Claims()
    assert claims.claim("m", "a", now_s=0.0)
    assert not claims.claim("m", "b", now_s=1.0)
    assert claims.claim("other", "b", now_s=1.0)
    assert claims.claim("m", "a", now_s=10.0)
    assert not claims.claim("m", "b", now_s=10.0 + HOLDS_FOR_S - 0.1)
    assert claims.claim("m", "b", now_s=10.0 + HOLDS_FOR_S)
    assert not claims.claim("m", "a", now_s=10.0 + HOLDS_FOR_S)


def test_what_would_not_stay_in_memory_is_not_read_ahead(tmp_path: Path) -> None:
    directory = model(tmp_path / "model", shards=2, size=1000)
    assert read_ahead(directory, available=100_000) is not None
    assert read_ahead(directory, available=2_000) is None


def in_memory(path: Path) -> int:
    """Bytes of a file that can be read without waiting for the disk."""
    with path.open("rb") as file:
        read = 0
        while True:
            try:
                got = os.preadv(file.fileno(), [bytearray(65536)], read, os.RWF_NOWAIT)
            except BlockingIOError:
                return read
            if not got:
                return read
            read += got


def test_what_is_read_ahead_is_soon_in_memory(tmp_path: Path) -> None:
    file = model(tmp_path / "model", shards=1, size=20_000_000) / "model-0.safetensors"
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        if in_memory(file) == 20_000_000:
            pytest.skip("this file system's files are always in memory")
    except OSError as error:
        pytest.skip(f"this file system does not say what is in memory: {error}")
    read_ahead(tmp_path / "model")
    until_s = time.monotonic() + 60
    while in_memory(file) < 20_000_000:
        assert time.monotonic() < until_s
        time.sleep(0.05)
