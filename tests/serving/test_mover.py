"""Moves against a Serve that does what it is asked at once, or not at all."""

from __future__ import annotations

import asyncio

import pytest

from autoscaler.moves import Goal, Unit
from serving.layout import growth, move_ground
from serving.layout import mover as mover_module
from serving.layout.generations import Generation, Order, following
from serving.layout.growth import Growth
from serving.layout.move_ground import Ground, MoveFailedError, Patience
from serving.layout.mover import Mover
from serving.messages import ReplicaReport
from tests.serving.fake_serve import FakeServe
from tests.serving.plans import plan

FIRST = Generation(pool="main", number=1, name="main", plan=plan(tp=1))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_ground, "POLL_S", 0.0)
    monkeypatch.setattr(growth, "POLL_S", 0.0)
    monkeypatch.setattr(mover_module, "FREED_S", 0.0)


def to_two_ranks(
    serve: FakeServe,
    *,
    replicas: int = 1,
    restore: int = 2,
    floor: float = 100.0,
    silent: frozenset[int] = frozenset(),
    below_floor: bool = False,
) -> tuple[Mover, list[str]]:
    """The move, and what it tells. `silent`: of the replicas asked, which do not answer."""
    order = Order(replicas=replicas, restore=restore, floor=floor, below_floor=below_floor)
    new = following(FIRST, number=2, app="app", plan=plan(tp=2), order=order)
    told: list[str] = []
    asked: list[str] = []

    async def prove(report: ReplicaReport) -> str:
        asked.append(report.replica_id)
        return "it is silent" if len(asked) in silent else ""

    made = Mover(
        old=FIRST,
        new=new,
        goal=Goal(
            old=Unit(devices=1, capacity=100.0),
            new=Unit(devices=2, capacity=220.0),
            replicas=replicas,
            floor=floor,
            below_floor=below_floor,
        ),
        order=order,
        ground=Ground(
            scaler=serve,  # type: ignore[arg-type]
            apps=serve,
            reports=serve.reports,
            patience=Patience(start_s=0.5, stop_s=0.5),
        ),
        growth=Growth(serve.nodes, limit_s=0.5),
        prove=prove,
        tell=told.append,
    )
    return made, told


async def test_with_room_the_old_replicas_go_when_the_new_one_has_answered() -> None:
    serve = FakeServe(FIRST, replicas=2, devices=4)
    mover, _ = to_two_ranks(serve)
    await mover.there()
    assert serve.log == ["deploy app-main-2: 1", "main: 0", "main: 0"]
    assert len(serve.apps["app-main-2"].replicas) == 1


async def test_without_room_as_many_go_first_as_the_floor_spares() -> None:
    serve = FakeServe(FIRST, replicas=4, devices=4)
    mover, _ = to_two_ranks(serve, replicas=2, restore=4, floor=200.0)
    await mover.there()
    assert serve.log[:3] == ["main: 2", "deploy app-main-2: 1", "main: 0"]
    assert serve.apps["app-main-2"].target == 2


async def test_new_replicas_are_withheld_until_they_have_answered() -> None:
    serve = FakeServe(FIRST, replicas=2, devices=4)
    mover, _ = to_two_ranks(serve, silent=frozenset({1}))
    with pytest.raises(MoveFailedError, match="it is silent"):
        await mover.there()
    assert mover.proven == frozenset()


async def test_a_start_that_fails_leads_back_and_touches_no_old_replica() -> None:
    serve = FakeServe(FIRST, replicas=2, devices=4)
    serve.failing = {2}
    before = list(serve.apps["main"].replicas)
    mover, _ = to_two_ranks(serve)
    with pytest.raises(MoveFailedError, match="do not start: ValueError: no such argument"):
        await mover.there()
    await mover.back()
    assert set(serve.apps) == {"main"}
    assert serve.apps["main"].replicas == before


async def test_what_went_first_is_restored_when_the_second_new_replica_is_silent() -> None:
    serve = FakeServe(FIRST, replicas=4, devices=4)
    mover, _ = to_two_ranks(serve, replicas=2, restore=4, floor=200.0, silent=frozenset({2}))
    with pytest.raises(MoveFailedError, match="it is silent"):
        await mover.there()
    await mover.back()
    await serve.states()
    assert set(serve.apps) == {"main"}
    assert len(serve.apps["main"].replicas) == 4


async def test_a_replica_that_never_comes_is_waited_for_with_a_limit() -> None:
    serve = FakeServe(FIRST, replicas=2, devices=4)
    mover, _ = to_two_ranks(serve)
    serve.start = lambda *_, **__: None  # type: ignore[method-assign,assignment]
    with pytest.raises(MoveFailedError, match=r"do not answer after 0\.5 s"):
        await mover.there()


async def test_serve_may_be_away_for_a_moment() -> None:
    serve = FakeServe(FIRST, replicas=2, devices=4)
    serve.away = 3
    mover, _ = to_two_ranks(serve)
    await mover.there()
    assert serve.apps["main"].target == 0


async def test_a_move_half_done_goes_on_from_where_it_is() -> None:
    serve = FakeServe(FIRST, replicas=4, devices=4)
    first, _ = to_two_ranks(serve, replicas=2, restore=4, floor=200.0, silent=frozenset({2}))
    with pytest.raises(MoveFailedError):
        await first.there()
    again, _ = to_two_ranks(serve, replicas=2, restore=4, floor=200.0)  # another controller's
    await again.there()
    assert serve.apps["main"].target == 0
    assert len(serve.apps["app-main-2"].replicas) == 2


async def test_the_steps_are_told_before_and_while_they_happen() -> None:
    serve = FakeServe(FIRST, replicas=2, devices=4)
    mover, told = to_two_ranks(serve)
    steps = await mover.preview()
    assert serve.log == []
    assert (len(steps), steps[0]) == (5, "start 1 replica(s) of the new layout")
    await mover.there()
    assert told[0] == steps[0]


async def test_no_way_is_told_before_anything_moves() -> None:
    serve = FakeServe(FIRST, replicas=2, devices=2)
    mover, _ = to_two_ranks(serve, floor=200.0)
    with pytest.raises(MoveFailedError, match="no room beside the 2 old"):
        await mover.preview()
    assert serve.log == []


async def test_where_there_is_no_room_a_node_is_asked_for_before_an_old_replica_goes() -> None:
    serve = FakeServe(FIRST, replicas=2, devices=2)
    serve.nodes.left = 3
    mover, told = to_two_ranks(serve, floor=200.0)
    assert (await mover.preview())[:2] == [
        "ask Ray's autoscaler for room for 1 replica(s) of the new layout",
        "start 1 replica(s) of the new layout",
    ]
    assert serve.log == []
    await mover.there()
    assert serve.log == ["node of 2", "deploy app-main-2: 1", "main: 0", "main: 0"]
    assert (serve.nodes.left, serve.nodes.names) == (2, frozenset())
    assert told[0].startswith("ask Ray's autoscaler for room")


async def test_where_there_is_room_no_node_is_asked_for() -> None:
    serve = FakeServe(FIRST, replicas=2, devices=4)
    serve.nodes.left = 3
    mover, _ = to_two_ranks(serve)
    await mover.there()
    assert serve.nodes.left == 3


async def test_when_nodes_are_refused_the_floor_s_spare_replicas_make_room_as_before() -> None:
    serve = FakeServe(FIRST, replicas=4, devices=4)
    serve.nodes.left = 0
    mover, _ = to_two_ranks(serve, replicas=2, restore=4, floor=200.0)
    await mover.there()
    assert serve.log[:3] == ["main: 2", "deploy app-main-2: 1", "main: 0"]
    assert serve.nodes.withdrawn == 1, "once refused, nothing is asked for again"


async def test_a_gap_is_taken_only_when_no_node_comes() -> None:
    serve = FakeServe(FIRST, replicas=2, devices=2)
    serve.nodes.left = 0
    mover, told = to_two_ranks(serve, floor=200.0, below_floor=True)
    await mover.there()
    assert serve.log[0] == "main: 0"
    assert told[0].startswith("ask Ray's autoscaler for room")


async def test_as_many_nodes_as_come_are_used_and_old_ones_make_room_for_the_rest() -> None:
    serve = FakeServe(FIRST, replicas=4, devices=4)
    serve.nodes.left = 2
    mover, _ = to_two_ranks(serve, replicas=4, restore=4, floor=400.0)
    await mover.there()
    assert len(serve.apps["app-main-2"].replicas) == 4
    assert serve.log == [
        *("node of 2", "deploy app-main-2: 1"),
        *("node of 2", "app-main-2: 2"),
        *("main: 2", "app-main-2: 3"),
        *("main: 0", "app-main-2: 4"),
        "main: 0",
    ]


@pytest.mark.parametrize(
    ("slow", "why"),
    [
        (False, r"asked for 1 x 2 device\(s\) and has no node, nor may add one, for 1 of 1"),
        (True, r"has brought no node within 0\.5 s \(last told: 1 x engine\) for 1 of 1"),
    ],
)
async def test_nodes_that_do_not_come_end_a_move_that_has_no_other_way(
    *, slow: bool, why: str
) -> None:
    serve = FakeServe(FIRST, replicas=2, devices=2)
    serve.nodes.left, serve.nodes.slow = 0, slow
    mover, _ = to_two_ranks(serve, floor=200.0)
    with pytest.raises(MoveFailedError, match=why):
        await mover.there()
    assert serve.nodes.names == frozenset(), "nothing stays asked for"
    await mover.back()
    assert set(serve.apps) == {"main"}
    assert len(serve.apps["main"].replicas) == 2


async def test_what_was_asked_for_is_withdrawn_when_a_move_is_cut_off() -> None:
    serve = FakeServe(FIRST, replicas=2, devices=2)
    serve.nodes.left, serve.nodes.slow = 0, True
    mover, _ = to_two_ranks(serve, floor=200.0)
    moving = asyncio.create_task(mover.there())
    while not serve.nodes.names:
        await asyncio.sleep(0)
    moving.cancel()
    await asyncio.wait([moving])
    assert serve.nodes.names == frozenset()
