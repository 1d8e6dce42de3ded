"""A store gives out the models it was told of, and nothing else of its node."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from serving.weights.choice import READERS
from serving.weights.door import Read
from serving.weights.peers import BusyError, NotHeldError
from serving.weights.reader import DoorReader
from serving.weights.store import WeightStore
from tests.weights.nodes import KEY, model


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WeightStore]:
    (tmp_path / "secret.txt").write_text("not a model's")
    place = model(tmp_path / "original")
    (place / ".git").mkdir()
    (place / ".git" / "config").write_text("hidden")
    cache = str(tmp_path / "cache")
    with closing(WeightStore({KEY: str(place)}, cache_dir=cache, host="127.0.0.1")) as made:
        yield made


async def read(
    store: WeightStore,
    name: str,
    *,
    key: str = KEY,
    version: str = "",
    offset: int = 0,
    reader: str = "r",
) -> bytes:
    """Ten bytes of a file, over a connection of one's own."""
    if not version:
        offer = await store.offer(key)
        assert offer is not None
        version = offer.version
    door = DoorReader(await store.address())
    try:
        return bytes(await door.read(Read(key, version, name, offset, 10, reader)))
    finally:
        door.close()


@pytest.mark.parametrize(
    "name", ["../secret.txt", "/etc/hostname", ".git/config", "1_Pooling/../../secret.txt", "none"]
)
async def test_a_name_that_is_not_of_the_model_is_refused(store: WeightStore, name: str) -> None:
    with pytest.raises(NotHeldError):
        await read(store, name)
    offer = await store.offer(KEY)
    assert offer is not None
    with pytest.raises(NotHeldError):
        await store.digest(KEY, offer.version, name)


@pytest.mark.parametrize("key", ["another", "..", "../original", "/etc"])
async def test_a_model_it_was_not_told_of_is_refused(store: WeightStore, key: str) -> None:
    assert await store.offer(key) is None
    with pytest.raises(NotHeldError):
        await read(store, "config.json", key=key, version="v")


@pytest.mark.parametrize("version", ["0" * 16, "../original", "..", "/"])
async def test_another_version_is_refused(store: WeightStore, version: str) -> None:
    with pytest.raises(NotHeldError):
        await read(store, "config.json", version=version)


async def test_what_a_node_gets_later_it_gives_too(store: WeightStore, tmp_path: Path) -> None:
    await store.hold("later", str(model(tmp_path / "later", seed=1)))
    offer = await store.offer("later")
    assert offer is not None
    assert offer.origin
    assert await read(store, "config.json", key="later", offset=2) == b"model_type"


async def test_reading_past_the_end_gives_nothing(store: WeightStore) -> None:
    assert await read(store, "empty.txt", offset=5) == b""


async def test_more_readers_than_it_serves_at_once_are_turned_away(store: WeightStore) -> None:
    for number in range(READERS):
        await read(store, "config.json", reader=str(number))
    again = await store.offer(KEY)
    assert again is not None
    assert again.readers == READERS
    with pytest.raises(BusyError):
        await read(store, "config.json", reader="another")
    await store.done(KEY, "config.json", "0")
    assert await read(store, "config.json", reader="another")


async def test_who_does_not_know_the_secret_is_told_nothing(store: WeightStore) -> None:
    address = await store.address()
    offer = await store.offer(KEY)
    assert offer is not None
    door = DoorReader(replace(address, secret="a guess"))
    with pytest.raises(OSError, match=r"closed|reset|pipe"):
        await door.read(Read(KEY, offer.version, "config.json", 0, 10, "r"))
    for garbage in (b"\0" * 32 + b"{}\n", b"GET / HTTP/1.1\r\n\r\n" + b" " * 32):
        with socket.create_connection((address.host, address.port), timeout=30) as connection:
            assert len(connection.recv(32)) == 32
            connection.sendall(garbage)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    assert await read(store, "config.json")
