"""From an order to the layout in force, as the controller's ticks see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from autoscaler.params import MAIN_POOL
from cluster.errors import InputError
from serving.control.observe import Heard, snapshot
from serving.layout import growth, move_ground, mover
from serving.layout import layout_keeper as module
from serving.layout.generations import Generation
from serving.layout.layout_keeper import LayoutKeeper
from serving.layout.layouts import Layouts
from serving.settings.replan_config import ReplanSection
from serving.settings.steering_config import SteeringSection
from tests.serving.fake_serve import FakeServe
from tests.serving.fakes import report
from tests.serving.plans import plan

RUNNING = plan(tp=1, initial=2)
FIRST = Generation(pool="main", number=1, name="main", plan=RUNNING)


class Service:
    """A keeper beside a Serve with `devices`. `answer`: what a new replica says."""

    def __init__(self, *, devices: int, serve: FakeServe | None = None) -> None:
        self.serve = serve or FakeServe(FIRST, replicas=2, devices=devices)
        self.heard = Heard()
        steering = SteeringSection(replan=ReplanSection(start_limit_s=0.5, stop_limit_s=0.5))
        layouts = Layouts(
            plan=RUNNING,
            steering=steering,
            apps=self.serve,
            nodes=self.serve.nodes,
            link_secret="s",
        )
        self.keeper = LayoutKeeper(
            layouts,
            deployment="main",
            app="app",
            scaler=self.serve,  # type: ignore[arg-type]
            heard=self.heard,
        )

    async def tick(self, now_s: float = 10.0) -> None:
        states = await self.serve.states()
        self.heard.replicas = {
            name: report(name, sent_s=now_s)
            for app in self.serve.apps.values()
            for name in app.replicas
        }
        self.heard.deployments = {MAIN_POOL: states["main"]}
        self.heard.deployments_s = now_s
        self.keeper.see(states)

    async def ticks_until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await self.tick()
                await asyncio.sleep(0)

    async def end(self) -> None:
        """As if the controller's process ended in the middle of a move."""
        assert self.keeper._move is not None
        task = self.keeper._move.task
        task.cancel()
        await asyncio.wait([task])

    @property
    def phase(self) -> str:
        return "" if self.keeper.progress is None else self.keeper.progress.phase


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_ground, "POLL_S", 0.0)
    monkeypatch.setattr(growth, "POLL_S", 0.0)
    monkeypatch.setattr(mover, "FREED_S", 0.0)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set it and new replicas answer."""
    may = asyncio.Event()

    async def first_answer(*_: object, **__: object) -> str:
        await may.wait()
        return ""

    monkeypatch.setattr(module, "first_answer", first_answer)
    return may


async def test_while_it_moves_the_pool_is_held_and_the_new_replica_withheld(
    answers: asyncio.Event,
) -> None:
    service = Service(devices=4)
    await service.tick()
    steps = await service.keeper.order(plan(tp=2), below_floor=False, needed=1)
    assert steps[0] == "start 1 replica(s) of the new layout"
    await service.ticks_until(lambda: "app-main-2" in service.serve.apps)
    await service.tick()
    (pool,) = snapshot(service.heard, pools=["main"], now_s=10.0).pools
    assert (pool.moving, pool.ready) == ("it moves to TP2", 2)
    told = service.heard.answering(10.0)
    assert told is not None
    assert {r.replica_id for r in told} == set(service.serve.apps["main"].replicas)
    answers.set()
    await service.ticks_until(lambda: service.phase == "done")
    await service.tick()
    assert service.keeper.current.name == "app-main-2"
    (pool,) = snapshot(service.heard, pools=["main"], now_s=10.0).pools
    assert (pool.moving, pool.ready, pool.target) == ("", 1, 1)
    assert service.keeper.params.main.maximum == plan(tp=2).main.replicas.maximum


async def test_a_second_order_is_refused_while_the_first_is_under_way(
    answers: asyncio.Event,
) -> None:
    service = Service(devices=4)
    await service.tick()
    await service.keeper.order(plan(tp=2), below_floor=False, needed=1)
    with pytest.raises(InputError, match="under way already"):
        await service.keeper.order(plan(tp=4), below_floor=False, needed=1)
    answers.set()
    await service.ticks_until(lambda: service.phase == "done")


async def test_where_the_load_needs_every_replica_and_there_is_no_room_it_is_refused() -> None:
    service = Service(devices=2)
    await service.tick()
    with pytest.raises(InputError, match="allow-below-floor"):
        await service.keeper.order(plan(tp=2, goodput_rps=2.0), below_floor=False, needed=2)
    assert service.phase == ""


async def test_as_many_new_replicas_are_asked_for_as_carry_what_is_needed(
    answers: asyncio.Event,
) -> None:
    answers.set()
    service = Service(devices=8)
    await service.tick()
    await service.keeper.order(plan(tp=2, goodput_rps=0.9), below_floor=False, needed=2)
    await service.ticks_until(lambda: service.phase == "done")
    assert len(service.serve.apps["app-main-2"].replicas) == 3  # 3 x 0.9 for 2 x 1.0


async def test_a_failed_move_leaves_the_layout_in_force_and_says_why(
    answers: asyncio.Event,
) -> None:
    service = Service(devices=4)
    service.serve.failing = {2}
    await service.tick()
    await service.keeper.order(plan(tp=2), below_floor=False, needed=1)
    await service.ticks_until(lambda: service.phase == "rolled back")
    await service.tick()
    assert service.keeper.current == FIRST
    assert service.heard.moving == {}
    assert service.keeper.progress is not None
    assert "no such argument" in service.keeper.progress.reason
    answers.set()
    await service.keeper.order(plan(tp=2), below_floor=False, needed=1)
    assert service.keeper.progress.number == 3, "no number is used twice"
    await service.ticks_until(lambda: service.phase == "done")


async def test_with_an_autoscaler_an_order_without_room_is_taken_and_its_end_says_what_was_asked(
    answers: asyncio.Event,
) -> None:
    answers.set()
    service = Service(devices=2)
    service.serve.nodes.left = 0
    await service.tick()
    wanted = plan(tp=2, goodput_rps=2.0)
    steps = await service.keeper.order(wanted, below_floor=False, needed=2)
    assert steps[0] == "ask Ray's autoscaler for room for 1 replica(s) of the new layout"
    await service.ticks_until(lambda: service.phase == "rolled back")
    assert service.keeper.progress is not None
    reason = service.keeper.progress.reason
    assert "Ray's autoscaler was asked for 1 x 2 device(s) and has no node" in reason
    assert "raise the maximum of its worker group" in reason
    assert service.serve.log == ["main: 2"], "nothing has been touched"
    service.serve.nodes.left = 1
    await service.keeper.order(wanted, below_floor=False, needed=2)
    await service.ticks_until(lambda: service.phase == "done")


async def test_a_controller_that_starts_anew_goes_on_with_the_move(answers: asyncio.Event) -> None:
    service = Service(devices=4)
    await service.tick()
    await service.keeper.order(plan(tp=2), below_floor=False, needed=1)
    await service.ticks_until(lambda: "app-main-2" in service.serve.apps)
    await service.end()
    another = Service(devices=4, serve=service.serve)
    await another.tick()
    assert another.phase == "moving"
    answers.set()
    await another.ticks_until(lambda: another.phase == "done")
    third = Service(devices=4, serve=service.serve)
    await third.tick()
    assert (third.keeper.current.number, third.phase) == (2, "")
    assert third.keeper.current.plan == plan(tp=2)
