"""Several gateways before the same replicas: no herd, no gateway left out, no overfull replica."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import mean

from hypothesis import given
from hypothesis import strategies as st

from cluster.pool_ledger import Elsewhere, PoolLedger, ReplicaLimits
from cluster.priority import Priority
from cluster.waiting_line import Ask, WaitingLine

HEAR_EVERY_S = 0.5
STAY_S = 5.0
TOKENS = 100.0


@dataclass(frozen=True, kw_only=True)
class Report:
    replica_id: str
    sent_s: float
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    limits: ReplicaLimits | None = None


@dataclass
class Pool:
    """Replicas in which every request stays `STAY_S`, behind some gateways."""

    gateways: int
    replicas: tuple[str, ...]
    slots: int
    now_s: float = 0.0
    leaving: list[tuple[float, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance = random.Random(1)
        self.ledgers = [
            PoolLedger(
                limits=ReplicaLimits(max_requests=self.slots, max_tokens=self.slots * TOKENS),
                line=WaitingLine(limit=10**6, delays_s={Priority.STANDARD: 30.0}),
                draw=chance.random,
            )
            for _ in range(self.gateways)
        ]
        self.hear()

    def hear(self) -> None:
        held = [ledger.in_flight() for ledger in self.ledgers]
        for own, ledger in enumerate(self.ledgers):
            totals = {
                name: tuple(
                    float(sum(h.get(name, (0, 0.0))[i] for g, h in enumerate(held) if g != own))
                    for i in range(2)
                )
                for name in self.replicas
            }
            elsewhere = Elsewhere(gateways=self.gateways - 1, held=totals)  # type: ignore[arg-type]
            reports = [Report(replica_id=name, sent_s=self.now_s) for name in self.replicas]
            ledger.observe(reports, elsewhere)
            self.place(own)

    def ask(self, gateway: int) -> None:
        what = Ask(priority=Priority.STANDARD, tokens=TOKENS, arrived_s=self.now_s)
        self.ledgers[gateway].line.put(what, now_s=self.now_s)
        self.place(gateway)

    def place(self, gateway: int) -> None:
        for _, replica in self.ledgers[gateway].place(self.now_s):
            self.leaving.append((self.now_s + STAY_S, gateway, replica))

    def pass_time(self, until_s: float) -> None:
        while self.leaving and self.leaving[0][0] <= until_s:
            self.now_s, gateway, replica = self.leaving.pop(0)
            self.ledgers[gateway].release(replica, TOKENS, 0.0)
            self.place(gateway)
        self.now_s = until_s

    def on(self, replica: str) -> int:
        return sum(ledger.in_flight().get(replica, (0, 0.0))[0] for ledger in self.ledgers)

    def of(self, gateway: int) -> int:
        return sum(count for count, _ in self.ledgers[gateway].in_flight().values())


def fullest_over_mean(*, gateways: int) -> float:
    """Under a steady stream at 60 % of the slots, mean over time."""
    pool = Pool(gateways=gateways, replicas=tuple("abcdefgh"), slots=32)
    chance = random.Random(2)
    seen, heard_s = [], 0.0
    for _ in range(3000):
        pool.pass_time(pool.now_s + chance.expovariate(0.6 * 8 * 32 / STAY_S))
        if pool.now_s - heard_s >= HEAR_EVERY_S:
            heard_s = pool.now_s
            pool.hear()
        pool.ask(chance.randrange(gateways))
        if pool.now_s > STAY_S:
            loads = [pool.on(name) for name in pool.replicas]
            seen.append(max(loads) / mean(loads))
    return mean(seen)


def test_gateways_that_hear_of_each_other_spread_load_almost_as_one_does() -> None:
    assert fullest_over_mean(gateways=4) < 1.1 * fullest_over_mean(gateways=1)


def test_an_empty_replica_is_not_stormed() -> None:
    pool = Pool(gateways=4, replicas=("old", "new"), slots=64)
    for own in range(4):
        for _ in range(10):
            pool.ledgers[own].take("old", TOKENS, 0.0)
    pool.hear()
    for own in range(4):
        for _ in range(15):
            pool.ask(own)
    assert abs(pool.on("old") - pool.on("new")) <= 4


def full_then_another(pool: Pool) -> Iterator[int]:
    """Gateway 0 has taken everything, and both have a line; what gateway 1 gets, over time."""
    for _ in range(pool.slots * len(pool.replicas) * 3):
        pool.ask(0)
    pool.pass_time(1.0)
    pool.hear()
    for _ in range(pool.slots * len(pool.replicas) * 3):
        pool.ask(1)
    for _ in range(20):
        yield pool.of(1)
        pool.pass_time(pool.now_s + HEAR_EVERY_S)
        pool.hear()


def test_a_gateway_that_comes_late_gets_its_share() -> None:
    pool = Pool(gateways=2, replicas=("a", "b"), slots=4)
    shares = list(full_then_another(pool))
    assert shares[0] >= 4
    assert 3 <= shares[-1] <= 5


@given(
    gateways=st.integers(2, 5),
    asks=st.lists(st.tuples(st.integers(0, 4), st.floats(0, 1)), max_size=80),
)
def test_replicas_hold_at_most_every_gateways_share_more_than_they_take(
    gateways: int, asks: list[tuple[int, float]]
) -> None:
    pool = Pool(gateways=gateways, replicas=("a", "b"), slots=5)
    for gateway, pause_s in asks:
        pool.pass_time(pool.now_s + pause_s)
        pool.ask(gateway % gateways)
        if pause_s > HEAR_EVERY_S:
            pool.hear()
        for name in pool.replicas:
            for ledger in pool.ledgers:
                assert ledger.in_flight().get(name, (0, 0.0))[0] <= 5


def test_replicas_of_two_layouts_each_take_as_much_as_they_say() -> None:
    now_s = 10.0
    ledger = PoolLedger(
        limits=ReplicaLimits(max_requests=2, max_tokens=2 * TOKENS),
        line=WaitingLine(limit=10**6, delays_s={Priority.STANDARD: 30.0}),
        draw=random.Random(1).random,
    )
    larger = ReplicaLimits(max_requests=6, max_tokens=6 * TOKENS)
    ledger.observe(
        [
            Report(replica_id="old", sent_s=now_s),
            Report(replica_id="new", sent_s=now_s, limits=larger),
        ]
    )
    for _ in range(10):
        ledger.line.put(Ask(Priority.STANDARD, TOKENS, now_s), now_s=now_s)
    placed = Counter(replica for _, replica in ledger.place(now_s))
    assert placed == {"old": 2, "new": 6}
    assert ledger.traffic(now_s).in_flight_tokens == 8 * TOKENS
