from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from serving.entry import HttpEntry, PortTakenError
from tests.live.instance import free_port
from tests.serving.fakes import FakeLink, Gate, Stage, chat


def staged(*, gate: Gate | None = None) -> Stage:
    stage = Stage(link=FakeLink() if gate is None else FakeLink(gate.script))
    stage.ready("a")
    return stage


@asynccontextmanager
async def opened(
    port: int, *, application: str = "ours", stage: Stage | None = None
) -> AsyncIterator[HttpEntry]:
    entry = await HttpEntry.open(
        (stage or staged()).app(application=application),
        host="127.0.0.1",
        port=port,
        node="127.0.0.1",
        application=application,
    )
    try:
        yield entry
    finally:
        await entry.close()


async def ask(port: int) -> str:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        answer = await client.post("/v1/chat/completions", json=chat(stream=True))
    return answer.text


async def test_callers_are_answered_at_the_port() -> None:
    port = free_port()
    async with opened(port):
        assert "hello" in await ask(port)


async def test_gateways_of_one_application_share_the_port_and_have_one_each() -> None:
    port = free_port()
    async with opened(port) as first, opened(port) as second:
        assert "hello" in await ask(port)
        assert first.own_address != second.own_address
        for entry in (first, second):
            assert "hello" in await ask(int(entry.own_address.rpartition(":")[2]))


async def test_the_port_of_another_application_is_not_shared() -> None:
    port = free_port()
    async with opened(port, application="theirs"):
        with pytest.raises(PortTakenError, match=r"127\.0\.0\.1:\d+ cannot be used.*'http\.port'"):
            async with opened(port):
                pass


async def test_a_port_that_is_taken_by_something_else_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.listen()
        with pytest.raises(PortTakenError):
            async with opened(other.getsockname()[1]):
                pass


async def test_an_answer_that_was_begun_is_finished_when_the_gateway_leaves() -> None:
    port, gate = free_port(), Gate("begun")
    async with opened(port, stage=staged(gate=gate)) as entry:
        asking = asyncio.create_task(ask(port))
        await gate.reached.wait()
        leaving = asyncio.create_task(entry.close())
        await asyncio.sleep(0)
        gate.open.set()
        assert "late" in await asking
        await leaving
    with pytest.raises(httpx.ConnectError):
        await ask(port)
