"""Who is held although a replica could take it: for a batch, or for the next VIP."""

from __future__ import annotations

import asyncio
import time

from cluster.batching import BatchRules
from cluster.pool_ledger import VIP_MEMORY_S, ReplicaLimits
from cluster.priority import Priority
from cluster.waiting_line import WaitingLine
from serving.dispatch import Dispatcher
from tests.serving.fakes import DELAYS_S, Clock, report
from tests.serving.test_dispatch import ask, observe, requests, start


def batching(
    *,
    wait_s: float,
    tokens: float = 4096.0,
    replicas: tuple[str, ...] = ("a",),
    max_requests: int = 8,
) -> Dispatcher:
    where = Dispatcher(
        pool="main",
        limits=ReplicaLimits(max_requests=max_requests, max_tokens=10_000.0),
        line=WaitingLine(limit=512, delays_s=DELAYS_S),
        clock=time.time,
        batches=BatchRules(wait_s=wait_s, tokens=tokens),
    )
    where.observe([report(replica, sent_s=time.time()) for replica in replicas])
    return where


async def test_while_every_replica_is_busy_requests_are_gathered_for_a_moment() -> None:
    where = batching(wait_s=0.02)
    busy = await where.place(ask())
    held = await start(where, ask(20.0))
    later = await start(where, ask(10.0))
    assert (held.done(), where.load().queued_requests) == (False, 2)
    assert [(await task).replica_id for task in (held, later)] == ["a", "a"]
    busy.release()


async def test_nobody_is_gathered_while_a_replica_is_idle() -> None:
    where = batching(wait_s=60.0, replicas=("a", "b"))
    first, second = await where.place(ask()), await where.place(ask())
    held = await start(where, ask())
    assert not held.done()
    first.release()
    assert (await held).replica_id == first.replica_id
    second.release()


async def test_a_vip_opens_the_batch_and_goes_first() -> None:
    where = batching(wait_s=60.0, max_requests=2)
    await where.place(ask())
    held = await start(where, ask())
    vip = await start(where, ask(priority=Priority.VIP))
    assert (vip.done(), held.done()) == (True, False)  # the one place that was left


async def test_a_batch_of_enough_tokens_goes_at_once() -> None:
    where = batching(wait_s=60.0, tokens=100.0)
    await where.place(ask())
    held = [await start(where, ask(60.0)) for _ in range(2)]
    assert [(await task).replica_id for task in held] == ["a", "a"]


async def test_who_leaves_a_batch_takes_no_place() -> None:
    where = batching(wait_s=60.0)
    busy = await where.place(ask())
    held = await start(where, ask())
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    assert where.load().queued_requests == 0
    busy.release()
    assert requests(where) == {}


def with_vip_slots(*replicas: str, max_requests: int = 8) -> tuple[Dispatcher, Clock]:
    clock = Clock()
    where = Dispatcher(
        pool="main",
        limits=ReplicaLimits(max_requests=max_requests, max_tokens=max_requests * 100.0),
        line=WaitingLine(limit=512, delays_s=DELAYS_S),
        clock=clock,
        vip_slots=2,
    )
    observe(where, clock, *replicas)
    return where, clock


async def test_while_vips_come_a_slot_is_kept_for_the_next() -> None:
    where, _ = with_vip_slots("a")
    first = await where.place(ask(priority=Priority.VIP))
    others = [await start(where, ask(100.0)) for _ in range(8)]
    assert requests(where) == {"a": 6}  # of 8, the VIP's among them
    vips = [await start(where, ask(priority=Priority.VIP)) for _ in range(2)]
    assert all(task.done() for task in vips)
    first.release()
    for task in vips:
        task.result().release()
    await asyncio.sleep(0)
    assert requests(where) == {"a": 6}
    assert sum(task.done() for task in others) == 6


async def test_no_slot_is_kept_where_no_vip_comes() -> None:
    where, clock = with_vip_slots("a")
    (await where.place(ask(priority=Priority.VIP))).release()
    clock.now_s += VIP_MEMORY_S + 1
    observe(where, clock, "a")
    others = [await start(where, ask()) for _ in range(9)]
    assert sum(task.done() for task in others) == 8


async def test_no_more_than_a_quarter_of_the_slots_is_kept() -> None:
    where, _ = with_vip_slots("a", max_requests=4)
    (await where.place(ask(priority=Priority.VIP))).release()
    others = [await start(where, ask()) for _ in range(4)]
    assert sum(task.done() for task in others) == 3


async def test_long_prompts_leave_room_for_a_vip_too() -> None:
    where, _ = with_vip_slots("a")
    (await where.place(ask(priority=Priority.VIP))).release()
    others = [await start(where, ask(300.0)) for _ in range(3)]
    assert sum(task.done() for task in others) == 2
    assert (await where.place(ask(priority=Priority.VIP))).replica_id == "a"


async def test_a_single_slot_is_everyones() -> None:
    where, _ = with_vip_slots("a", max_requests=1)
    (await where.place(ask(priority=Priority.VIP))).release()
    assert (await where.place(ask())).replica_id == "a"
