"""A stream that has not begun is taken back and given to a better replica, and to no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from serving.messages import EngineError
from serving.settings.config import LimitsSection
from tests.serving.fakes import (
    Caller,
    FakeLink,
    Gate,
    Stage,
    answering,
    chat,
    directive,
    failing,
    report,
)

SOON_S = 0.02


def stage(gate: Gate, *, moves: int = 2) -> Stage:
    """Replica a says nothing until the gate opens; the others answer at once."""
    limits = LimitsSection(reschedule_s=SOON_S, moves=moves)
    made = Stage(
        limits=limits,
        max_requests=4,
        link=FakeLink(answering("quick"), by_replica={"a": gate.script}),
    )
    made.ready("a")
    return made


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def moved(on: Stage) -> float:
    return on.value("shardwise_moved_requests_total", pool="main")


async def two_on_a(on: Stage, **fields: object) -> list[Caller]:
    app = on.app()
    callers = [Caller(app, chat(stream=True, **fields)) for _ in range(2)]
    await until(lambda: on.link.running == 2)
    return callers


async def answered(on: Stage, gate: Gate, callers: list[Caller]) -> None:
    """Everyone is answered once the gate opens, and nothing is left of them."""
    gate.open.set()
    await asyncio.gather(*(caller.task for caller in callers))
    assert all(caller.status == 200 for caller in callers)
    on.assert_idle()


async def test_those_that_wait_move_to_the_replica_that_came() -> None:
    gate = Gate()
    on = stage(gate)
    callers = await two_on_a(on)
    await asyncio.sleep(3 * SOON_S)
    assert moved(on) == 0, "there was no better one"
    on.ready("a", "b", queueing="a")
    await asyncio.gather(*(caller.task for caller in callers))
    assert moved(on) == 2
    assert all("quick" in caller.text for caller in callers)
    assert all(caller.text.count("[DONE]") == 1 for caller in callers)
    on.assert_idle()


async def test_not_everyone_moves_to_the_same_place() -> None:
    gate, slow = Gate(), Gate()
    on = stage(gate, moves=1)
    on.link.script = slow.script
    app = on.app()
    callers = [Caller(app, chat(stream=True)) for _ in range(4)]
    await until(lambda: on.link.running == 4)
    on.ready("a", "b", "c", queueing="a")
    await until(lambda: moved(on) >= 2)
    await asyncio.sleep(3 * SOON_S)
    on_them = on.dispatcher.in_flight()
    assert min(on_them["b"][0], on_them["c"][0]) >= 1
    assert abs(on_them["b"][0] - on_them["c"][0]) <= 1
    gate.open.set()
    slow.open.set()
    await asyncio.gather(*(caller.task for caller in callers))
    on.assert_idle()


async def test_what_is_being_worked_on_stays_until_its_replica_falls_silent() -> None:
    gate = Gate()
    on = stage(gate)
    callers = await two_on_a(on)
    on.ready("a", "b")
    await asyncio.sleep(5 * SOON_S)
    assert moved(on) == 0, "nothing waits inside a: it is busy with their prompts"
    on.clock.now_s += 60
    on.service.follow(
        directive(report("a", sent_s=on.clock() - 60), report("b", sent_s=on.clock()))
    )
    await until(lambda: any(caller.ended for caller in callers))
    await answered(on, gate, callers)


async def test_what_has_begun_stays() -> None:
    gate = Gate("begun")
    on = stage(gate)
    callers = await two_on_a(on)
    for caller in callers:
        await caller.saw("begun")
    on.ready("a", "b", queueing="a")
    await asyncio.sleep(5 * SOON_S)
    assert moved(on) == 0
    await answered(on, gate, callers)


async def test_an_answer_that_is_not_streamed_stays() -> None:
    gate = Gate()
    on = stage(gate)
    app = on.app()
    callers = [Caller(app, chat()) for _ in range(2)]
    await until(lambda: on.link.running == 2)
    on.ready("a", "b", queueing="a")
    await asyncio.sleep(5 * SOON_S)
    assert moved(on) == 0
    await answered(on, gate, callers)


async def test_moves_are_bounded() -> None:
    gate = Gate()
    on = stage(gate, moves=0)
    callers = await two_on_a(on)
    on.ready("a", "b", queueing="a")
    await asyncio.sleep(5 * SOON_S)
    assert moved(on) == 0
    await answered(on, gate, callers)


async def test_callers_that_leave_before_during_and_after_a_move_leave_nothing() -> None:
    for pause_s in (0.0, SOON_S / 2, SOON_S, 1.2 * SOON_S, 2 * SOON_S):
        gate, slow = Gate(), Gate()
        on = stage(gate)
        on.link.script = slow.script
        callers = await two_on_a(on)
        on.ready("a", "b", queueing="a")
        await asyncio.sleep(pause_s)
        for caller in callers:
            caller.leave()
        await asyncio.gather(*(caller.task for caller in callers))
        on.assert_idle()


async def test_a_failure_on_the_better_replica_is_tried_elsewhere() -> None:
    gate = Gate()
    on = stage(gate)
    on.link.by_replica["b"] = failing(EngineError(status=500, message="no", retryable=True))
    callers = await two_on_a(on)
    on.ready("a", "b", "c", queueing="a")
    await until(lambda: any(caller.ended for caller in callers))
    gate.open.set()
    await asyncio.gather(*(caller.task for caller in callers))
    assert all(caller.status == 200 for caller in callers)
    assert all('"error"' not in caller.text for caller in callers)
    on.assert_idle()
