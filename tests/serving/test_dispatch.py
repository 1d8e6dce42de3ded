import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.pool_ledger import ARRIVAL_WINDOW_S
from cluster.priority import Priority
from cluster.waiting_line import Ask
from serving.dispatch import Dispatcher, Slot
from tests.serving.fakes import Clock, dispatcher, report


def requests(where: Dispatcher) -> dict[str, int]:
    return {replica: count for replica, (count, _) in where.in_flight().items()}


def ask(
    tokens: float = 10.0,
    priority: Priority = Priority.STANDARD,
    *,
    at_s: float = 1000.0,
    failed: dict[str, float] | None = None,
) -> Ask:
    return Ask(priority=priority, tokens=tokens, arrived_s=at_s, failed=failed or {})


def observe(where: Dispatcher, clock: Clock, *replicas: str) -> None:
    where.observe([report(replica, sent_s=clock()) for replica in replicas])


async def start(where: Dispatcher, what: Ask) -> asyncio.Task[Slot]:
    task = asyncio.create_task(where.place(what))
    await asyncio.sleep(0)
    return task


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def done(tasks: Iterable[asyncio.Task[Slot]]) -> list[bool]:
    return [task.done() for task in tasks]


async def test_a_free_replica_is_taken_without_waiting() -> None:
    clock = Clock()
    where = dispatcher(clock)
    observe(where, clock, "a")
    slot = await asyncio.wait_for(where.place(ask()), 1)
    assert (slot.replica_id, requests(where)) == ("a", {"a": 1})
    slot.release()
    assert requests(where) == {}


async def test_load_is_spread_by_tokens() -> None:
    clock = Clock()
    where = dispatcher(clock, max_requests=8)
    observe(where, clock, "a", "b")
    long = await where.place(ask(900))
    short = [await where.place(ask(10)) for _ in range(4)]
    assert {slot.replica_id for slot in short} == {"a", "b"} - {long.replica_id}


async def test_vip_first_then_in_order_of_arrival() -> None:
    clock = Clock()
    where = dispatcher(clock, max_requests=1)
    observe(where, clock, "a")
    holder = await where.place(ask())
    order: list[str] = []

    async def queue(name: str, priority: Priority, at_s: float) -> None:
        slot = await where.place(ask(priority=priority, at_s=at_s))
        order.append(name)
        slot.release()

    async with asyncio.TaskGroup() as group:
        for name, priority, at_s in [
            ("first", Priority.STANDARD, 1000.0),
            ("batch", Priority.BATCH, 1001.0),
            ("second", Priority.STANDARD, 1002.0),
            ("vip", Priority.VIP, 1003.0),
        ]:
            group.create_task(queue(name, priority, at_s))
        await settle()
        holder.release()
    assert order == ["vip", "first", "second", "batch"]


async def test_a_thousand_cancelled_in_line_leave_nothing_and_service_goes_on() -> None:
    clock = Clock()
    where = dispatcher(clock, max_requests=1)
    observe(where, clock, "a")
    holder = await where.place(ask())
    tasks = [await start(where, ask()) for _ in range(1000)]
    assert where.load().queued_requests == 1000
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (where.load().queued_requests, where.load().queued_tokens) == (0, 0)
    holder.release()
    assert (where.load().in_flight_tokens, requests(where)) == (0, {})
    (await asyncio.wait_for(where.place(ask()), 1)).release()


async def test_cancelled_in_the_moment_it_is_placed_gives_the_place_back() -> None:
    clock = Clock()
    where = dispatcher(clock, max_requests=1)
    observe(where, clock, "a")
    holder = await where.place(ask())
    placed, behind = await start(where, ask()), await start(where, ask())
    holder.release()  # resolves the first one's turn; its task has not run yet
    placed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await placed
    (await asyncio.wait_for(behind, 1)).release()
    assert requests(where) == {}


async def test_a_timeout_in_the_moment_of_placement_gives_the_place_back() -> None:
    clock = Clock()
    where = dispatcher(clock, max_requests=1)
    observe(where, clock, "a")
    holder = await where.place(ask())
    loop = asyncio.get_running_loop()

    async def waiter() -> None:
        async with asyncio.timeout(None) as limit:
            # In one callback: the time is up first, and the place is given before that is seen.
            loop.call_soon(lambda: (limit.reschedule(loop.time() - 1), holder.release()))
            await where.place(ask())

    with pytest.raises(TimeoutError):
        await waiter()
    assert (requests(where), where.load().queued_requests) == ({}, 0)


async def test_a_large_request_is_not_passed_by_smaller_ones_for_ever() -> None:
    clock = Clock()
    where = dispatcher(clock, max_requests=4, max_tokens=100)
    observe(where, clock, "a")
    running = await where.place(ask(60))
    large, small = await start(where, ask(90)), await start(where, ask(10))
    assert done([large, small]) == [False, False]
    running.release()
    await settle()
    assert done([large, small]) == [True, True]


async def test_when_a_blocking_request_leaves_those_behind_it_are_placed() -> None:
    clock = Clock()
    where = dispatcher(clock, max_requests=4, max_tokens=100)
    observe(where, clock, "a")
    await where.place(ask(60))
    large, small = await start(where, ask(90)), await start(where, ask(10))
    large.cancel()
    await settle()
    assert done([large, small]) == [True, True]
    assert requests(where) == {"a": 2}


async def test_one_that_avoids_the_only_free_replica_does_not_block_those_behind() -> None:
    clock = Clock()
    where = dispatcher(clock, max_requests=1)
    observe(where, clock, "a", "b")
    slots = [await where.place(ask()) for _ in range(2)]
    picky = await start(where, ask(failed={"a": clock()}))
    easy = await start(where, ask())
    next(slot for slot in slots if slot.replica_id == "a").release()
    await settle()
    assert done([picky, easy]) == [False, True]
    assert (await easy).replica_id == "a"
    next(slot for slot in slots if slot.replica_id == "b").release()
    assert (await asyncio.wait_for(picky, 1)).replica_id == "b"


async def test_a_suspect_is_chosen_again_only_after_a_newer_report() -> None:
    clock = Clock()
    where = dispatcher(clock)
    observe(where, clock, "a")
    old = report("a", sent_s=clock())
    where.suspect("a")
    waiting = await start(where, ask())
    where.observe([old])  # the same report comes with every directive
    await settle()
    assert (where.ready, waiting.done()) == (0, False)
    clock.now_s += 1
    observe(where, clock, "a")
    assert (await asyncio.wait_for(waiting, 1)).replica_id == "a"


async def test_a_request_that_failed_everywhere_waits_for_a_newer_report_and_no_longer() -> None:
    clock = Clock()
    where = dispatcher(clock)
    observe(where, clock, "a")
    clock.now_s += 1
    waiting = await start(where, ask(failed={"a": clock()}))
    assert not waiting.done()
    clock.now_s += 1
    observe(where, clock, "a")
    assert (await asyncio.wait_for(waiting, 1)).replica_id == "a"


async def test_a_request_that_failed_prefers_another_replica_even_a_busy_one() -> None:
    clock = Clock()
    where = dispatcher(clock, max_requests=1)
    observe(where, clock, "a", "b")
    slots = [await where.place(ask()) for _ in range(2)]
    waiting = await start(where, ask(failed={"a": clock() - 1}))
    for slot in slots:
        if slot.replica_id == "a":
            slot.release()
    await settle()
    assert not waiting.done()


async def test_replicas_that_vanish_take_no_requests_and_leave_no_load() -> None:
    clock = Clock()
    where = dispatcher(clock, max_requests=1)
    observe(where, clock, "a")
    slot = await where.place(ask())
    waiting = await start(where, ask())
    where.observe([])
    slot.release()
    await settle()
    assert (where.ready, waiting.done(), requests(where)) == (0, False, {})
    observe(where, clock, "b")
    assert (await asyncio.wait_for(waiting, 1)).replica_id == "b"


async def test_another_pools_replicas_are_not_ours() -> None:
    clock = Clock()
    where = dispatcher(clock)
    where.observe([report("x", sent_s=clock(), pool="light")])
    assert where.ready == 0


async def test_arrivals_are_averaged_over_the_window_and_forgotten() -> None:
    clock = Clock()
    where = dispatcher(clock)
    where.arrived(100, 0.5)
    clock.now_s += ARRIVAL_WINDOW_S / 2
    where.arrived(50, 0.25)
    assert where.load().arrival_tokens_per_s == 150 / ARRIVAL_WINDOW_S
    assert where.load().arrival_work == 0.75 / ARRIVAL_WINDOW_S
    clock.now_s += ARRIVAL_WINDOW_S / 2
    assert where.load().arrival_tokens_per_s == 50 / ARRIVAL_WINDOW_S
    assert where.load().arrival_work == 0.25 / ARRIVAL_WINDOW_S
    clock.now_s += ARRIVAL_WINDOW_S
    assert where.load().arrival_tokens_per_s == 0


async def test_load_tells_who_waits_and_how_long() -> None:
    clock = Clock()
    where = dispatcher(clock, max_requests=4, max_tokens=100)
    waiting = await start(where, ask(30))
    clock.now_s += 4
    load = where.load()
    assert (load.queued_requests, load.queued_tokens, load.oldest_wait_s) == (1, 30, 4)
    waiting.cancel()


async def test_a_short_request_counts_as_its_slots_share() -> None:
    clock = Clock()
    where = dispatcher(clock, max_requests=4, max_tokens=100)
    tasks = [await start(where, ask(1)) for _ in range(2)]
    assert where.load().queued_tokens == 2 * 25
    where.observe([report("a", sent_s=clock())])
    await asyncio.gather(*tasks)
    assert where.load().queued_tokens == 0
    assert where.load().in_flight_tokens == 2 * 25


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["place", "release", "cancel", "observe", "suspect", "run", "tick"]),
        st.integers(0, 50),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(steps=STEPS)
def test_counters_conserve_under_any_interleaving(steps: list[tuple[str, int]]) -> None:
    async def scenario() -> None:
        clock = Clock()
        where = dispatcher(clock, max_requests=2, max_tokens=100)
        tasks: list[asyncio.Task[Slot]] = []
        released: set[int] = set()

        def held() -> list[Slot]:
            ended = [t for t in tasks if t.done() and not t.cancelled()]
            return [t.result() for t in ended if id(t) not in released]

        for action, n in steps:
            if action == "place":
                failed = {"a": clock()} if n % 3 == 0 else {}
                asked = ask(float(n), list(Priority)[n % 3], at_s=clock(), failed=failed)
                tasks.append(asyncio.create_task(where.place(asked)))
            elif action == "release":
                for task in [t for t in tasks if t.done() and not t.cancelled()][: n % 3]:
                    task.result().release()
                    released.add(id(task))
            elif action == "cancel" and tasks:
                tasks[n % len(tasks)].cancel()
            elif action == "observe":
                observe(where, clock, *("a", "b", "c")[: n % 4])
            elif action == "suspect":
                where.suspect("ab"[n % 2])
            elif action == "tick":
                clock.now_s += 1
            else:
                await settle()
        await settle()
        open_slots = held()
        assert sum(requests(where).values()) == len(open_slots)
        on_each = {r: [s.tokens for s in open_slots if s.replica_id == r] for r in "abc"}
        held_tokens = sum(max(sum(tokens), len(tokens) * 50) for tokens in on_each.values())
        assert where.load().in_flight_tokens == pytest.approx(held_tokens)
        assert all(count <= 2 for count in requests(where).values())
        assert where.load().queued_requests == sum(not t.done() for t in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for slot in held():
            slot.release()
        assert (where.load().queued_requests, requests(where)) == (0, {})
        clock.now_s += 1
        observe(where, clock, "a")
        await asyncio.wait_for(where.place(ask(at_s=clock())), 1)

    asyncio.run(scenario())
