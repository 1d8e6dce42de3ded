"""A store gives out the models it was told of, and nothing else of its node."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.weights.peers import NotHeldError
from serving.weights.store import WeightStore
from tests.weights.nodes import KEY, model


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    (tmp_path / "secret.txt").write_text("not a model's")
    place = model(tmp_path / "original")
    (place / ".git").mkdir()
    (place / ".git" / "config").write_text("hidden")
    return WeightStore({KEY: str(place)}, str(tmp_path / "cache"))


@pytest.mark.parametrize(
    "name", ["../secret.txt", "/etc/hostname", ".git/config", "1_Pooling/../../secret.txt", "none"]
)
async def test_a_name_that_is_not_of_the_model_is_refused(store: WeightStore, name: str) -> None:
    offer = await store.offer(KEY)
    assert offer is not None
    with pytest.raises(NotHeldError):
        await store.read(KEY, offer.version, name, offset=0, length=10, reader="r")
    with pytest.raises(NotHeldError):
        await store.digest(KEY, offer.version, name)


@pytest.mark.parametrize("key", ["another", "..", "../original", "/etc"])
async def test_a_model_it_was_not_told_of_is_refused(store: WeightStore, key: str) -> None:
    assert await store.offer(key) is None
    with pytest.raises(NotHeldError):
        await store.read(key, "v", "config.json", offset=0, length=10, reader="r")


async def test_another_version_is_refused(store: WeightStore) -> None:
    with pytest.raises(NotHeldError):
        await store.read(KEY, "0" * 16, "config.json", offset=0, length=10, reader="r")
    for version in ("../original", "..", "/"):
        with pytest.raises(NotHeldError):
            await store.read(KEY, version, "config.json", offset=0, length=10, reader="r")


async def test_what_a_node_gets_later_it_gives_too(store: WeightStore, tmp_path: Path) -> None:
    await store.hold("later", str(model(tmp_path / "later", seed=1)))
    offer = await store.offer("later")
    assert offer is not None
    assert offer.origin
    chunk = await store.read("later", offer.version, "config.json", offset=2, length=5, reader="r")
    assert bytes(chunk) == b"model"


async def test_reading_past_the_end_gives_nothing(store: WeightStore) -> None:
    offer = await store.offer(KEY)
    assert offer is not None
    read = await store.read(KEY, offer.version, "empty.txt", offset=5, length=10, reader="r")
    assert len(read) == 0
