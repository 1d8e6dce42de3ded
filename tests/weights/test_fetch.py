"""A model comes whole from other nodes, whatever happens to them on the way."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cluster.errors import UnavailableError
from serving.weights import cache as cache_module
from serving.weights.peers import Chunk
from tests.weights.nodes import Nodes, contents, model, small_chunks


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    made.add("origin", model(tmp_path / "original"))
    with small_chunks(), closing(made):
        yield made


def original(nodes: Nodes) -> dict[str, bytes]:
    return contents(nodes.root / "original")


async def test_what_is_fetched_is_what_was_there(nodes: Nodes) -> None:
    copy = await nodes.fetch("b")
    assert copy is not None
    assert contents(copy) == original(nodes)


async def test_nothing_is_fetched_again_that_is_here(nodes: Nodes) -> None:
    first = await nodes.fetch("b")
    read = dict(nodes.read)
    assert await nodes.fetch("b") == first
    assert nodes.read == read


async def test_a_model_that_nobody_has_is_not_found(tmp_path: Path) -> None:
    with closing(Nodes(tmp_path)) as nodes:
        assert await nodes.fetch("b") is None


async def test_a_model_that_was_written_anew_is_fetched_anew_and_the_old_copy_goes(
    nodes: Nodes,
) -> None:
    old = await nodes.fetch("b")
    shutil.rmtree(nodes.root / "original")
    model(nodes.root / "original", seed=1)
    new = await nodes.fetch("b")
    assert new is not None
    assert old is not None
    assert contents(new) == original(nodes)
    assert not old.exists()


async def test_a_copy_is_a_source_when_the_origin_is_gone(nodes: Nodes) -> None:
    await nodes.fetch("b")
    expected = original(nodes)
    del nodes.stores["origin"]
    shutil.rmtree(nodes.root / "original")
    copy = await nodes.fetch("c")
    assert copy is not None
    assert contents(copy) == expected


async def test_a_peer_that_dies_midway_is_replaced_and_what_it_gave_is_kept(nodes: Nodes) -> None:
    await nodes.fetch("b")
    nodes.read.clear()

    def dies(peer: str, name: str, offset: int, chunk: Chunk) -> Chunk:
        if peer == "origin" and offset >= 2000:
            nodes.stores.pop("origin", None)
            raise ConnectionError("the node is gone")
        return chunk

    nodes.fault = dies
    copy = await nodes.fetch("c")
    assert copy is not None
    assert contents(copy) == original(nodes)
    total = sum(len(data) for data in original(nodes).values())
    assert nodes.read["origin"] > 0
    # Chunks that had been asked for ahead may come twice, nothing else does.
    assert nodes.read["origin"] + nodes.read["b"] <= total + 2 * 2 * 1000


async def break_off(nodes: Nodes) -> None:
    """An attempt that leaves 3,000 bytes of the last shard."""

    def dies(peer: str, name: str, offset: int, chunk: Chunk) -> Chunk:
        if name == "model-2.safetensors" and offset >= 3000:
            raise ConnectionError("unreachable")
        return chunk

    nodes.fault = dies
    with pytest.raises(UnavailableError, match=r"model-2\.safetensors.*unreachable.*is kept"):
        await nodes.fetch("b", patience_s=0.5)
    nodes.fault = Nodes.fault
    nodes.read.clear()


async def test_the_next_attempt_goes_on_where_the_last_one_broke_off(nodes: Nodes) -> None:
    await break_off(nodes)
    copy = await nodes.fetch("b")
    assert copy is not None
    assert contents(copy) == original(nodes)
    assert nodes.read == {"origin": 4502 - 3000}


def wrong(peer: str, name: str, offset: int, chunk: Chunk) -> Chunk:
    if peer == "b" and name == "model-1.safetensors":
        chunk = chunk.copy()
        chunk[0] ^= 1
    return chunk


async def test_wrong_bytes_are_noticed_and_fetched_from_another_peer(nodes: Nodes) -> None:
    await nodes.fetch("b")
    nodes.fault = wrong
    copy = await nodes.fetch("c")
    assert copy is not None
    assert contents(copy) == original(nodes)


async def test_wrong_bytes_from_everybody_are_an_error_that_names_the_file(nodes: Nodes) -> None:
    await nodes.fetch("b")
    del nodes.stores["origin"]
    nodes.fault = wrong
    with pytest.raises(UnavailableError, match=r"model-1\.safetensors.*has the digest"):
        await nodes.fetch("c", patience_s=0.5)
    assert not nodes.cache("c").versions()


async def test_bytes_that_went_bad_on_this_disk_are_not_blamed_on_the_peer(nodes: Nodes) -> None:
    await break_off(nodes)
    (part,) = (nodes.root / "b").rglob("model-2.safetensors.part")
    part.write_bytes(b"\0" * 3000)
    copy = await nodes.fetch("b")
    assert copy is not None
    assert contents(copy) == original(nodes)


async def test_a_full_disk_names_the_bytes_needed_and_free(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil._ntuple_diskusage(10000, 9000, 1000)  # type: ignore[attr-defined]
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda path: free)
    needed = sum(len(data) for data in original(nodes).values())
    with pytest.raises(UnavailableError, match=rf"{needed:,} bytes .* 1,000 bytes free.*cache_dir"):
        await nodes.fetch("b")
    assert "origin" not in nodes.read


async def test_many_nodes_at_once_do_not_all_read_from_one(nodes: Nodes) -> None:
    async def slowly() -> None:
        await asyncio.sleep(0.01)

    nodes.pause = slowly
    names = [f"n{number}" for number in range(8)]
    copies = await asyncio.gather(*(nodes.fetch(name, patience_s=20.0) for name in names))
    for copy in copies:
        assert copy is not None
        assert contents(copy) == original(nodes)
    total = sum(len(data) for data in original(nodes).values())
    assert sum(nodes.read.values()) == 8 * total
    assert nodes.read["origin"] < 0.75 * 8 * total
    assert len(nodes.read) > 1
