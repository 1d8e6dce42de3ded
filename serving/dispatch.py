"""Where does a request go, and when? One dispatcher per pool and gateway.

Joins the replicas the controller knows of, what this gateway has in flight on each, and the
waiting line; the choice itself is `cluster.routing.pick`. A request is placed the moment a replica
can take it: nothing is held back to form a batch.

A request that does not fit yet holds the replicas it could use against those behind it, or smaller
ones would pass it for ever; replicas it must avoid stay open to the others.

Invariants: a slot taken is given back exactly once (`Slot.release`); a lost replica (a *suspect*)
is not chosen again before it has reported anew; a replica that failed a request gets the same
request again only if it has reported anew and the pool has no other.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.routing import EngineReport, ReplicaView, RouteRequest, pick
from serving.messages import PoolLoad, ReplicaReport
from serving.priority import Ask, Priority, Slot, Ticket, WaitingLine

# Arrivals are averaged over this long; the controller's tick is shorter, its delays longer.
ARRIVAL_WINDOW_S = 5.0


@dataclass(frozen=True, kw_only=True)
class ReplicaLimits:
    """What one replica of the pool takes: sequences in its batch, tokens in its KV cache."""

    max_requests: int
    max_tokens: float


@dataclass
class _InFlight:
    requests: int = 0
    tokens: float = 0.0


class Dispatcher:
    """Placement of one pool's requests by one gateway. `clock`: that of the replicas' reports."""

    def __init__(
        self,
        *,
        pool: str,
        limits: ReplicaLimits,
        line: WaitingLine,
        clock: Callable[[], float],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._pool = pool
        self._limits = limits
        self._line = line
        self._clock = clock
        self._draw = draw
        self._reports: dict[str, ReplicaReport] = {}
        self._suspects: dict[str, float] = {}
        self._in_flight: dict[str, _InFlight] = {}
        self._arrivals: deque[tuple[float, float]] = deque()

    @property
    def ready(self) -> int:
        """Replicas that may be chosen."""
        return len(self._candidates())

    def line_full_for(self, priority: Priority) -> bool:
        """Whether the waiting line takes no more of this class."""
        return self._line.full_for(priority)

    def observe(self, reports: Sequence[ReplicaReport]) -> None:
        """The pool's replicas as the controller knows them now."""
        self._reports = {r.replica_id: r for r in reports if r.pool == self._pool}
        self._suspects = {
            replica_id: since_s
            for replica_id, since_s in self._suspects.items()
            if replica_id in self._reports and not self._reported_after(replica_id, since_s)
        }
        self._place_waiting()

    def suspect(self, replica_id: str) -> None:
        """The replica was lost: choose it again only after a newer report."""
        self._suspects[replica_id] = self._clock()

    def arrived(self, tokens: float) -> None:
        """Count a request's predicted tokens as arrived (refused ones too)."""
        self._arrivals.append((self._clock(), tokens))
        self._forget_arrivals()

    async def place(self, ask: Ask) -> Slot:
        """A slot on a replica, waiting in line if need be. Cancel to leave the line."""
        ticket = self._line.put(ask, now_s=self._clock())
        try:
            self._place_waiting()
            return await ticket.turn
        except BaseException:
            if ticket.turn.done() and not ticket.turn.cancelled():
                ticket.turn.result().release()  # cancelled in the very moment it was placed
            else:
                self._line.leave(ticket)
                self._place_waiting()  # those it held replicas against
            raise

    def load(self) -> PoolLoad:
        """This gateway's traffic for the pool.

        A request counts at least as its slot's share of a replica: a full batch of short requests
        leaves no more room than one of long ones.
        """
        self._forget_arrivals()
        slot = self._limits.max_tokens / self._limits.max_requests
        return PoolLoad(
            pool=self._pool,
            arrival_tokens_per_s=sum(tokens for _, tokens in self._arrivals) / ARRIVAL_WINDOW_S,
            in_flight_tokens=sum(
                max(held.tokens, held.requests * slot) for held in self._in_flight.values()
            ),
            queued_tokens=max(self._line.tokens, len(self._line) * slot),
            queued_requests=len(self._line),
            oldest_wait_s=self._line.oldest_wait_s(self._clock()),
        )

    def in_flight(self) -> dict[str, int]:
        """Requests per replica."""
        return {replica_id: held.requests for replica_id, held in self._in_flight.items()}

    def _forget_arrivals(self) -> None:
        oldest_s = self._clock() - ARRIVAL_WINDOW_S
        while self._arrivals and self._arrivals[0][0] <= oldest_s:
            self._arrivals.popleft()

    def _candidates(self) -> list[ReplicaReport]:
        return [r for r in self._reports.values() if r.replica_id not in self._suspects]

    def _reported_after(self, replica_id: str, time_s: float) -> bool:
        # Equal times say nothing about order; the next report is a second away.
        return replica_id in self._reports and self._reports[replica_id].sent_s > time_s

    def _views(self) -> list[ReplicaView]:
        return [self._view(report) for report in self._candidates()]

    def _view(self, report: ReplicaReport) -> ReplicaView:
        held = self._in_flight.get(report.replica_id, _InFlight())
        return ReplicaView(
            replica_id=report.replica_id,
            in_flight_tokens=held.tokens,
            in_flight_requests=held.requests,
            max_requests=self._limits.max_requests,
            max_tokens=self._limits.max_tokens,
            report=EngineReport(
                age_s=self._clock() - report.sent_s,
                running=report.running,
                waiting=report.waiting,
                kv_usage=report.kv_usage,
            ),
        )

    def _avoid(self, ask: Ask) -> frozenset[str]:
        if not ask.failed:
            return frozenset()
        if any(r.replica_id not in ask.failed for r in self._candidates()):
            return frozenset(ask.failed)
        return frozenset(r for r, at_s in ask.failed.items() if not self._reported_after(r, at_s))

    def _place_waiting(self) -> None:
        if not len(self._line):
            return
        views = {view.replica_id: view for view in self._views()}
        for ticket in self._line:
            if not views:
                return
            if ticket.turn.done():
                continue  # cancelled; its own task takes it out of the line
            request = RouteRequest(tokens=ticket.ask.tokens, avoid=self._avoid(ticket.ask))
            chosen = pick(request, tuple(views.values()), tie=self._draw())
            if chosen is None:
                views = {name: view for name, view in views.items() if name in request.avoid}
            else:
                self._take(chosen.replica_id, ticket)
                views[chosen.replica_id] = self._view(self._reports[chosen.replica_id])

    def _take(self, replica_id: str, ticket: Ticket) -> None:
        self._line.leave(ticket)
        held = self._in_flight.setdefault(replica_id, _InFlight())
        held.requests += 1
        held.tokens += ticket.ask.tokens
        slot = Slot(replica_id=replica_id, tokens=ticket.ask.tokens, release=self._give_back)
        ticket.turn.set_result(slot)

    def _give_back(self, slot: Slot) -> None:
        held = self._in_flight[slot.replica_id]
        held.requests -= 1
        held.tokens -= slot.tokens
        if held.requests == 0:
            del self._in_flight[slot.replica_id]  # and with it the rounding of the sums
        self._place_waiting()
