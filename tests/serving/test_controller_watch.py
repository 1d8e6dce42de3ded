"""When a gateway ends the controller, by a clock of the test's own."""

import asyncio

import pytest

from serving.control.controller_watch import AGAIN_S, FROZEN_S, TURN_S, ControllerWatch
from tests.serving.fakes import Clock


class Scene:
    def __init__(self) -> None:
        self.clock, self.kills = Clock(), 0
        self.watch = ControllerWatch(self.kill, clock=self.clock)

    async def kill(self) -> None:
        self.kills += 1

    async def silent(self, seconds: float) -> None:
        """Exchanges of five seconds that nobody answers."""
        until_s = self.clock.now_s + seconds
        while self.clock.now_s < until_s:
            asked_s = self.clock.now_s
            self.clock.now_s += 5.0
            self.watch.silent(asked_s)
            await asyncio.sleep(0)


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_gateways_take_turns(place: int) -> None:
    scene = Scene()
    scene.watch.answered(place)
    await scene.silent(FROZEN_S + place * TURN_S - 5.0)
    assert scene.kills == 0
    await scene.silent(5.0)
    assert scene.kills == 1


async def test_an_answer_or_a_refusal_begins_anew() -> None:
    scene = Scene()
    for heard in (lambda: scene.watch.answered(0), scene.watch.refused):
        await scene.silent(FROZEN_S - 5.0)
        heard()
    await scene.silent(FROZEN_S - 5.0)
    assert scene.kills == 0


async def test_one_that_stays_frozen_is_ended_again_after_a_while() -> None:
    scene = Scene()
    await scene.silent(FROZEN_S + AGAIN_S - 5.0)
    assert scene.kills == 1
    await scene.silent(5.0)
    assert scene.kills == 2


async def test_an_end_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def kill() -> None:
        raise ValueError("no such actor")

    scene = Scene()
    scene.watch = ControllerWatch(kill, clock=scene.clock)
    await scene.silent(FROZEN_S)
    await asyncio.sleep(0)
    assert "no such actor" in caplog.text
