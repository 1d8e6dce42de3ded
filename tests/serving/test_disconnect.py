"""Whenever the caller leaves, everything the request held is free and the engine is told."""

import asyncio

import pytest

from tests.serving.fakes import Caller, FakeLink, Gate, Stage, chat


async def left(stage: Stage, caller: Caller) -> None:
    caller.leave()
    await asyncio.wait_for(caller.task, 5)
    assert not caller.ended
    stage.assert_idle()
    pools = ("main", "none")
    counted = [
        stage.value("shardwise_requests_total", pool=pool, status="499", priority="standard")
        for pool in pools
    ]
    assert sum(counted) == 1


async def serves_again(stage: Stage, gate: Gate) -> None:
    gate.open.set()
    caller = Caller(stage.app(), chat())
    await asyncio.wait_for(caller.task, 5)
    assert caller.status == 200
    stage.assert_idle()


@pytest.mark.parametrize("stream", [True, False])
async def test_while_it_waits_in_line(stream: bool) -> None:
    gate = Gate()
    stage = Stage(max_requests=1, link=FakeLink(gate.script))
    caller = Caller(stage.app(), chat(stream=stream))
    await asyncio.sleep(0.01)
    assert stage.dispatcher.load().queued_requests == 1
    await left(stage, caller)
    stage.ready("a")
    await serves_again(stage, gate)


@pytest.mark.parametrize("stream", [True, False])
async def test_while_its_first_reply_is_awaited(stream: bool) -> None:
    gate = Gate()
    stage = Stage(max_requests=1, link=FakeLink(gate.script))
    stage.ready("a")
    caller = Caller(stage.app(), chat(stream=stream))
    await gate.reached.wait()
    assert stage.link.running == 1
    await left(stage, caller)
    assert caller.status is None
    await serves_again(stage, gate)


async def test_in_mid_stream() -> None:
    gate = Gate("first")
    stage = Stage(max_requests=1, link=FakeLink(gate.script))
    stage.ready("a")
    caller = Caller(stage.app(), chat(stream=True))
    await caller.saw("first")
    await left(stage, caller)
    await serves_again(stage, gate)


@pytest.mark.parametrize("stream", [True, False])
async def test_when_the_server_cancels_the_request(stream: bool) -> None:
    gate = Gate()
    stage = Stage(max_requests=1, link=FakeLink(gate.script))
    stage.ready("a")
    caller = Caller(stage.app(), chat(stream=stream))
    await gate.reached.wait()
    caller.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller.task
    stage.assert_idle()
    await serves_again(stage, gate)


async def test_a_thousand_left_in_line_and_serving_goes_on() -> None:
    gate = Gate()
    stage = Stage(max_requests=1, link=FakeLink(gate.script))
    stage.ready("a")
    app = stage.app()
    holder = Caller(app, chat())
    await gate.reached.wait()
    for _ in range(10):
        callers = [Caller(app, chat(stream=bool(i % 2))) for i in range(100)]
        await asyncio.sleep(0.01)
        assert stage.dispatcher.load().queued_requests == 100
        for caller in callers:
            caller.leave()
        await asyncio.wait_for(asyncio.gather(*(c.task for c in callers)), 20)
        assert stage.dispatcher.load().queued_requests == 0
    gate.open.set()
    await holder.task
    await serves_again(stage, gate)


async def test_a_caller_whose_socket_breaks_frees_everything() -> None:
    gate = Gate("first")
    stage = Stage(link=FakeLink(gate.script))
    stage.ready("a")

    class Broken(Caller):
        async def _send(self, message) -> None:
            if message.get("body"):
                raise OSError("connection reset")

    await asyncio.wait_for(Broken(stage.app(), chat(stream=True)).task, 5)
    stage.assert_idle()
    assert stage.value("shardwise_requests_total", pool="main", status="499", priority="standard")


async def test_a_caller_who_leaves_before_the_body_is_whole() -> None:
    stage = Stage()
    caller = Caller(stage.app(), chat())
    caller._incoming.get_nowait()
    caller._incoming.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
    await left(stage, caller)
