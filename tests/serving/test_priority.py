import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.priority import Priority
from cluster.waiting_line import Ask, Ticket, WaitingLine
from serving.dispatch import Slot
from tests.serving.fakes import DELAYS_S

ASKS = st.builds(
    Ask,
    priority=st.sampled_from(Priority),
    tokens=st.floats(0, 1000),
    arrived_s=st.integers(0, 300),
)


def line(limit: int = 10) -> WaitingLine:
    return WaitingLine(limit=limit, delays_s=DELAYS_S)


def ask(priority: Priority = Priority.STANDARD, *, at_s: float = 0.0) -> Ask:
    return Ask(priority=priority, tokens=5.0, arrived_s=at_s)


async def test_a_vip_passes_those_who_have_not_waited_their_delay_out() -> None:
    waiting = line()
    batch = waiting.put(ask(Priority.BATCH, at_s=0), now_s=0)
    standard = waiting.put(ask(at_s=80), now_s=80)
    vip = waiting.put(ask(Priority.VIP, at_s=100), now_s=100)
    assert list(waiting) == [vip, standard, batch]


async def test_nobody_waits_for_ever() -> None:
    waiting = line()
    batch = waiting.put(ask(Priority.BATCH, at_s=0), now_s=0)
    for at_s in range(100, 140, 10):
        waiting.put(ask(Priority.VIP, at_s=at_s), now_s=at_s)
    # Due at 120, as the VIP of second 120: that one came later.
    assert [t.ask.arrived_s for t in waiting] == [100, 110, 0, 120, 130]
    assert batch in list(waiting)


async def test_only_vips_crowd_out_a_vip() -> None:
    waiting = line(limit=2)
    for _ in range(2):
        waiting.put(ask(Priority.BATCH), now_s=0)
    assert waiting.full_for(Priority.STANDARD)
    assert not waiting.full_for(Priority.VIP)
    for _ in range(2):
        waiting.put(ask(Priority.VIP), now_s=0)
    assert waiting.full_for(Priority.VIP)


async def test_a_retry_keeps_its_turn_but_starts_waiting_anew() -> None:
    waiting = line()
    waiting.put(ask(at_s=50), now_s=50)
    retry = waiting.put(ask(at_s=10), now_s=60)
    assert next(iter(waiting)) is retry
    assert waiting.oldest_wait_s(70) == 20


@settings(deadline=None)
@given(asks=st.lists(ASKS, max_size=20), leaving=st.sets(st.integers(0, 19)))
def test_order_and_counters_after_any_puts_and_leaves(asks: list[Ask], leaving: set[int]) -> None:
    async def scenario() -> None:
        waiting = line()
        tickets: list[Ticket] = [waiting.put(a, now_s=a.arrived_s) for a in asks]
        for index in leaving & set(range(len(tickets))):
            waiting.leave(tickets[index])
            waiting.leave(tickets[index])
        left = [t for i, t in enumerate(tickets) if i not in leaving]
        assert sorted(waiting, key=lambda t: t.order) == left
        assert len(waiting) == len(left)
        assert waiting.tokens == sum(t.ask.tokens for t in waiting)
        due = [a.arrived_s + DELAYS_S[a.priority] for a in (t.ask for t in waiting)]
        assert due == sorted(due)
        for priority in Priority:
            same = [t for t in waiting if t.ask.priority is priority]
            assert same == sorted(same, key=lambda t: (t.ask.arrived_s, t.order))

    asyncio.run(scenario())


def test_a_slot_is_given_back_once() -> None:
    released: list[Slot] = []
    slot = Slot(replica_id="a", tokens=1.0, work=0.1, release=released.append)
    slot.release()
    slot.release()
    assert released == [slot]
