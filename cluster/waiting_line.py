"""Who goes first, and who waits in line: a bounded priority queue with ageing.

Each request gets a due time, `arrival + delay of its class`; the earliest due goes first. A VIP
(delay 0) passes everyone who arrived less than a class delay before, and nobody waits for ever: a
batch request that has waited its delay out beats a VIP that has just come. Due times never change,
so the line is a sorted list. The live gateway and the simulator queue in the same line.

Invariants: the counters equal the waiting tickets after any mix of put and leave; order within a
class is order of arrival.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from cluster.priority import Priority


class Ask(NamedTuple):
    """What a request needs of a replica.

    `tokens`: predicted. `arrived_s`: at the gateway, which a retry does not change. `failed`:
    replicas that failed this request, and when. `prefix`: the blocks its prompt begins with.
    `work`: predicted engine-seconds, see `cluster.engine_work`.
    """

    priority: Priority
    tokens: float
    arrived_s: float
    failed: Mapping[str, float] = MappingProxyType({})
    prefix: tuple[int, ...] = ()
    work: float = 0.0


class Ticket(NamedTuple):
    """A place in the line; `order` is unique, so tickets compare by the first two."""

    due_s: float
    order: int
    ask: Ask
    since_s: float


class WaitingLine:
    """Requests that no replica can take yet. `limit`: how many may wait."""

    def __init__(self, *, limit: int, delays_s: Mapping[Priority, float]) -> None:
        self._limit = limit
        self._delays_s = delays_s
        self._tickets: list[Ticket] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        """Tickets as they are now, first due first."""
        return iter(tuple(self._tickets))

    def full_for(self, priority: Priority) -> bool:
        """Whether one more would be too many. Only VIPs can crowd out a VIP."""
        if len(self) < self._limit or priority is not Priority.VIP:
            return len(self) >= self._limit
        return sum(t.ask.priority is Priority.VIP for t in self._tickets) >= self._limit

    def has(self, priority: Priority) -> bool:
        """Whether one of this class waits."""
        return any(ticket.ask.priority is priority for ticket in self._tickets)

    @property
    def tokens(self) -> float:
        """Predicted tokens waiting."""
        return sum(ticket.ask.tokens for ticket in self._tickets)

    @property
    def work(self) -> float:
        """Predicted engine-seconds waiting."""
        return sum(ticket.ask.work for ticket in self._tickets)

    def oldest_wait_s(self, now_s: float) -> float:
        """How long the one that has waited most has waited, 0 if nobody waits."""
        return now_s - min((ticket.since_s for ticket in self._tickets), default=now_s)

    def put(self, ask: Ask, *, now_s: float) -> Ticket:
        """Join the line; does not look at the limit (see `full_for`)."""
        due_s = ask.arrived_s + self._delays_s[ask.priority]
        ticket = Ticket(due_s, next(self._order), ask, now_s)
        insort(self._tickets, ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Leave the line, served or not; leaving twice is harmless."""
        index = bisect_left(self._tickets, ticket)
        if index < len(self._tickets) and self._tickets[index] is ticket:
            del self._tickets[index]
