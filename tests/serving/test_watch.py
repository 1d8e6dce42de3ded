"""What replicas owe a gateway, by a clock of the test's own."""

import asyncio
import math
from collections.abc import AsyncIterator

import pytest

from serving.messages import EngineError, EngineReply, EngineRequest
from serving.replica_link import LinkError
from serving.watch import REMEMBER_S, Watch, WatchedLink
from tests.serving.fakes import Clock, FakeLink, Gate, answering, failing, lost_after


class Scene:
    """A watched link over a fake one."""

    def __init__(self, link: FakeLink | None = None) -> None:
        self.clock = Clock()
        self.fake = link or FakeLink()
        self.watch = Watch(self.clock)
        self.link = WatchedLink(self.fake, self.watch)

    @property
    def owed_s(self) -> float:
        return self.watch.owed()["a"].owed_s

    def passes(self, seconds: float) -> None:
        self.clock.now_s += seconds

    async def ask(self) -> list[EngineReply]:
        asked = EngineRequest(kind="chat", body={"stream": True}, request_id="r", tokens=1.0)
        return [r async for replies in self.link.call(asked, replica_id="a") for r in replies]


async def test_who_was_asked_nothing_owes_nothing() -> None:
    scene = Scene()
    scene.watch.know(["a"])
    scene.passes(100)
    assert scene.owed_s == 0
    assert scene.watch.owed()["a"].silent_s == math.inf


async def test_a_token_is_owed_from_the_question_until_it_comes() -> None:
    gate = Gate()
    scene = Scene(FakeLink(gate.script))
    asking = asyncio.create_task(scene.ask())
    await gate.reached.wait()
    scene.passes(7)
    assert scene.owed_s == 7
    gate.open.set()
    await asking
    assert scene.owed_s == 0
    scene.passes(3)
    assert scene.watch.owed()["a"].silent_s == 3


async def test_a_token_of_one_request_pays_for_all() -> None:
    gate = Gate()
    scene = Scene(FakeLink(gate.script))
    asking = asyncio.create_task(scene.ask())
    await gate.reached.wait()
    scene.passes(7)
    scene.fake.script = answering("quick")
    await scene.ask()
    assert scene.owed_s == 0
    scene.passes(2)
    assert scene.owed_s == 2, "the other one still waits"
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert scene.owed_s == 0


async def test_what_was_lost_with_the_connection_is_owed_until_a_token_comes() -> None:
    scene = Scene(FakeLink(lost_after()))
    with pytest.raises(LinkError):
        await scene.ask()
    scene.passes(8)
    assert scene.owed_s == 8
    scene.fake.script = answering("back")
    await scene.ask()
    assert scene.owed_s == 0


async def test_an_error_is_no_token() -> None:
    refusal = EngineError(status=400, message="no", retryable=False)
    scene = Scene(FakeLink(failing(refusal)))
    await scene.ask()
    assert not scene.watch.heard("a")


async def test_nobody_is_charged_for_a_gateway_that_stood_still() -> None:
    gate = Gate()
    scene = Scene(FakeLink(gate.script))
    asking = asyncio.create_task(scene.ask())
    await gate.reached.wait()
    scene.passes(0.5)
    scene.watch.beat(0.5)
    scene.passes(30.5)
    scene.watch.beat(0.5)
    assert scene.owed_s == 1
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_those_long_gone_are_forgotten_and_those_that_owe_are_not() -> None:
    scene = Scene()

    async def never(request: EngineRequest, replica_id: str) -> AsyncIterator[list[EngineReply]]:
        await asyncio.Event().wait()
        yield []

    scene.fake.script = never
    scene.watch.know(["a", "b"])
    asking = asyncio.create_task(scene.ask())
    await asyncio.sleep(0)
    scene.passes(REMEMBER_S + 1)
    scene.watch.know([])
    assert set(scene.watch.owed()) == {"a"}
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
