"""Which replica may take which waiting request, and what is in flight where? One pool's books.

Joins the replicas that report, what was dispatched to each and is not finished, and the waiting
line; the choice itself is `cluster.routing.pick`. A request is placed the moment a replica can take
it, unless batches are formed (`cluster.batching`). One that does not fit yet holds the replicas it
could use against those behind it, or smaller ones would pass it for ever; replicas it must avoid
stay open to the others.

The live dispatcher (`serving.dispatch`) and the simulated gateway (`cluster.sim.front`) keep the
same books; here is no clock and no waiting: the time is an argument.

Where there are several gateways, each hears now and then what the others have in flight, and until
it hears again assumes that they do as it does: or all would fill the replica that was emptiest. The
others never count for more than their share of a replica, so that a gateway that comes late gets
its own (`Elsewhere`).

Invariants: in flight = placed - released; a lost replica (a *suspect*) is not chosen again before
it has reported anew; a replica that failed a request gets the same request again only if it has
reported anew and the pool has no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cluster.batching import BatchRules
from cluster.prefix_index import PrefixIndex
from cluster.priority import Priority
from cluster.routers import Picker
from cluster.routing import (
    STALE_AFTER_S,
    EngineReport,
    ReplicaView,
    RouteRequest,
    pick,
    score,
)
from cluster.waiting_line import Ask, Ticket, WaitingLine

# Arrivals are averaged over this long; the controller's tick is shorter, its delays longer.
ARRIVAL_WINDOW_S = 5.0
# How long after the last VIP slots are kept for the next.
VIP_MEMORY_S = 60.0


@dataclass(frozen=True, kw_only=True)
class ReplicaLimits:
    """What one replica of the pool takes: sequences in its batch, tokens in its KV cache."""

    max_requests: int
    max_tokens: float


class Report(Protocol):
    """An engine replica's own account, as of `sent_s`."""

    @property
    def replica_id(self) -> str: ...  # noqa: D102
    @property
    def sent_s(self) -> float: ...  # noqa: D102
    @property
    def running(self) -> int: ...  # noqa: D102
    @property
    def waiting(self) -> int: ...  # noqa: D102
    @property
    def kv_usage(self) -> float: ...  # noqa: D102
    @property
    def prompt_tokens(self) -> int: ...  # noqa: D102
    @property
    def output_tokens(self) -> int: ...  # noqa: D102

    @property
    def limits(self) -> ReplicaLimits | None:
        """Its own, where replicas of the pool differ; None: the pool's."""
        ...


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """A pool's traffic as one gateway sees it; tokens and work are predicted ones.

    `arrival_work`: engine-seconds per second. `in_flight_work`, `queued_work`: engine-seconds, of
    whole requests, however far they are.
    """

    arrival_tokens_per_s: float
    in_flight_tokens: float
    queued_tokens: float
    arrival_work: float
    in_flight_work: float
    queued_work: float
    queued_requests: int
    oldest_wait_s: float


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """What other gateways have in flight, as last heard. `held`: requests, tokens, by replica."""

    gateways: int = 0
    held: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass
class _Held:
    requests: int = 0
    tokens: float = 0.0
    work: float = 0.0


_NOTHING = _Held()
_AT_ONCE = BatchRules()
_ROUNDING_S = 1e-6


class PoolLedger:
    """The books of one pool and gateway.

    `limits`: of a replica that does not say its own.
    `draw` in [0, 1) chooses among equal replicas; `choose` is who chooses among all. `vip_slots`:
    how many slots of the pool are kept free for VIPs while there are any, at most a quarter.
    `prefixes`: what the replicas' caches hold, None where they have none.
    """

    def __init__(
        self,
        *,
        limits: ReplicaLimits,
        line: WaitingLine,
        draw: Callable[[], float],
        choose: Picker = pick,
        batches: BatchRules = _AT_ONCE,
        vip_slots: int = 0,
        prefixes: PrefixIndex | None = None,
    ) -> None:
        self._limits = limits
        self.line = line
        self._draw = draw
        self._choose = choose
        self._batches = batches
        self._vip_slots = vip_slots
        self._prefixes = prefixes
        self._vip_s = -float("inf")
        self._reports: dict[str, Report] = {}
        self._suspects: dict[str, float] = {}
        self._held: dict[str, _Held] = {}
        self._elsewhere = Elsewhere()
        self._held_when_heard: dict[str, tuple[float, float]] = {}
        self._arrivals: deque[tuple[float, float, float]] = deque()
        self._views: dict[str, ReplicaView] = {}
        self._views_until_s = float("inf")

    @property
    def ready(self) -> int:
        """Replicas that may be chosen."""
        return sum(replica_id not in self._suspects for replica_id in self._reports)

    def has_idle(self, now_s: float) -> bool:
        """Whether a replica that may be chosen has nothing to do, as far as gateways know."""
        views = self._fresh_views(now_s)
        return any(view.in_flight_requests == 0 for view in views.values())

    def observe(self, reports: Iterable[Report], elsewhere: Elsewhere | None = None) -> None:
        """The pool's replicas as they are known now; call `place` afterwards.

        `elsewhere`: what the other gateways have in flight; None: as heard before.
        """
        if elsewhere is not None:
            self._elsewhere = elsewhere
            self._held_when_heard = {
                name: (held.requests, held.tokens) for name, held in self._held.items()
            }
        self._reports = {report.replica_id: report for report in reports}
        self._suspects = {
            replica_id: since_s
            for replica_id, since_s in self._suspects.items()
            if replica_id in self._reports and not self._reported_after(replica_id, since_s)
        }
        if self._prefixes is not None:
            self._prefixes.keep(self._reports)
        self._forget_views()

    def suspect(self, replica_id: str, now_s: float) -> None:
        """The replica was lost: choose it again only after a newer report."""
        self._suspects[replica_id] = now_s
        self._forget_views()

    def arrived(self, tokens: float, work: float, now_s: float) -> None:
        """Count a request's predicted tokens and work as arrived (refused ones too)."""
        self._arrivals.append((now_s, tokens, work))
        self._forget_arrivals(now_s)

    def place(self, now_s: float) -> list[tuple[Ticket, str]]:
        """Who goes where now. They leave the line, and count as in flight."""
        placed: list[tuple[Ticket, str]] = []
        if not len(self.line) or (self._batches.wait_s and not self._open(now_s)):
            return placed
        views = self._fresh_views(now_s)
        free = self._free_for_others(now_s)
        for ticket in self.line:
            if not views:
                break
            ask = ticket.ask
            if free < 1.0 and ask.priority is not Priority.VIP:
                continue  # VIPs behind it may still go
            request = self._request(ask, replicas=len(views))
            chosen = self._choose(request, tuple(views.values()), tie=self._draw())
            if chosen is None:
                views = {name: view for name, view in views.items() if name in request.avoid}
            else:
                self.line.leave(ticket)
                self.take(chosen.replica_id, ask.tokens, ask.work)
                if ask.prefix and self._prefixes is not None:
                    self._prefixes.note(ask.prefix, chosen.replica_id)
                placed.append((ticket, chosen.replica_id))
                free -= 1.0
                if views is not self._views:
                    views[chosen.replica_id] = self._views[chosen.replica_id]
        return placed

    def _free_for_others(self, now_s: float) -> float:
        """Slots that are not kept for VIPs.

        Without such slots a VIP under overload waits for an answer of somebody else to end, however
        early it is in line. Slots that VIPs have taken come back as others end.
        """
        if self.line.has(Priority.VIP):
            self._vip_s = now_s
        if not self._vip_slots or now_s - self._vip_s > VIP_MEMORY_S:
            return float("inf")
        views = self._fresh_views(now_s).values()
        slots = sum(view.max_requests for view in views)
        return sum(map(_free_slots, views)) - min(self._vip_slots, slots // 4)

    def due_s(self, now_s: float) -> float:
        """When those that are held go at the latest; infinite if nobody is held."""
        wait_s = self._batches.wait_s
        if not wait_s or not len(self.line) or self._open(now_s):
            return float("inf")
        return now_s - self.line.oldest_wait_s(now_s) + wait_s

    def _open(self, now_s: float) -> bool:
        line = self.line
        return self._batches.open(
            waiting_tokens=line.tokens,
            # A timer that was set for this moment must find that it has come.
            oldest_wait_s=line.oldest_wait_s(now_s) + _ROUNDING_S,
            vip=line.has(Priority.VIP),
            idle=self.has_idle(now_s),
        )

    def better(self, tokens: float, than: str, now_s: float) -> str | None:
        """A replica that a request of `tokens` in flight on `than` would do better on.

        As if it were not in flight: it moves only where another one scores higher.
        """
        views = self._fresh_views(now_s)
        request = RouteRequest(tokens=tokens, avoid=frozenset({than}))
        chosen = self._choose(request, tuple(views.values()), tie=self._draw())
        if chosen is None or than not in views:
            return None if chosen is None else chosen.replica_id
        held = self._held[than]
        without = self._view(
            self._reports[than],
            now_s,
            _Held(requests=held.requests - 1, tokens=held.tokens - tokens),
        )
        return chosen.replica_id if score(request, chosen) > score(request, without) else None

    def queues(self, replica_id: str, now_s: float) -> bool:
        """Whether requests may wait inside a replica: it says so, or says nothing any more."""
        report = self._reports.get(replica_id)
        return report is None or report.waiting > 0 or now_s - report.sent_s > STALE_AFTER_S

    def take(self, replica_id: str, tokens: float, work: float) -> None:
        """Count a request as in flight on a replica."""
        held = self._held.setdefault(replica_id, _Held())
        held.requests += 1
        held.tokens += tokens
        held.work += work
        self._renew(replica_id)

    def release(self, replica_id: str, tokens: float, work: float) -> None:
        """A request is no longer in flight; call `place` afterwards."""
        held = self._held[replica_id]
        held.requests -= 1
        held.tokens -= tokens
        held.work -= work
        if held.requests == 0:
            del self._held[replica_id]  # and with it the rounding of the sums
        self._renew(replica_id)

    def traffic(self, now_s: float) -> Traffic:
        """This gateway's traffic.

        A request counts at least as its slot's share of a replica's tokens: a full batch of short
        requests leaves no more room than one of long ones.
        """
        self._forget_arrivals(now_s)
        slots = {name: _slot_tokens(self._limits_of(name)) for name in self._reports}
        slot = min(slots.values(), default=_slot_tokens(self._limits))
        return Traffic(
            arrival_tokens_per_s=sum(tokens for _, tokens, _ in self._arrivals) / ARRIVAL_WINDOW_S,
            in_flight_tokens=sum(
                max(held.tokens, held.requests * slots.get(name, slot))
                for name, held in self._held.items()
            ),
            queued_tokens=max(self.line.tokens, len(self.line) * slot),
            arrival_work=sum(work for _, _, work in self._arrivals) / ARRIVAL_WINDOW_S,
            in_flight_work=sum(held.work for held in self._held.values()),
            queued_work=self.line.work,
            queued_requests=len(self.line),
            oldest_wait_s=self.line.oldest_wait_s(now_s),
        )

    def in_flight(self) -> dict[str, tuple[int, float]]:
        """This gateway's requests and predicted tokens, by replica."""
        return {name: (held.requests, held.tokens) for name, held in self._held.items()}

    def _forget_arrivals(self, now_s: float) -> None:
        oldest_s = now_s - ARRIVAL_WINDOW_S
        while self._arrivals and self._arrivals[0][0] <= oldest_s:
            self._arrivals.popleft()

    def _reported_after(self, replica_id: str, time_s: float) -> bool:
        # Equal times say nothing about order; the next report is a second away.
        return replica_id in self._reports and self._reports[replica_id].sent_s > time_s

    def _fresh_views(self, now_s: float) -> dict[str, ReplicaView]:
        """Views of the replicas that may be chosen, made anew when a report has become stale."""
        if now_s > self._views_until_s:
            self._views = {
                replica_id: self._view(report, now_s, self._held.get(replica_id, _NOTHING))
                for replica_id, report in self._reports.items()
                if replica_id not in self._suspects
            }
            self._views_until_s = min(
                (
                    now_s + STALE_AFTER_S - view.report.age_s
                    for view in self._views.values()
                    if view.report is not None and view.report.age_s <= STALE_AFTER_S
                ),
                default=float("inf"),
            )
        return self._views

    def _forget_views(self) -> None:
        self._views, self._views_until_s = {}, -float("inf")

    def _renew(self, replica_id: str) -> None:
        view = self._views.get(replica_id)
        if view is not None:
            requests, tokens = self._in_flight(replica_id, self._held.get(replica_id, _NOTHING))
            self._views[replica_id] = ReplicaView(
                replica_id,
                tokens,
                requests,
                view.max_requests,
                view.max_tokens,
                view.report,  # it ages; when it is stale, all views are made anew
            )

    def _in_flight(self, replica_id: str, held: _Held) -> tuple[float, float]:
        """Requests and tokens on a replica: this gateway's, and what the others may have."""
        others = self._elsewhere.gateways
        if not others:
            return held.requests, held.tokens
        requests, tokens = self._elsewhere.held.get(replica_id, (0.0, 0.0))
        then_requests, then_tokens = self._held_when_heard.get(replica_id, (0.0, 0.0))
        requests += others * (held.requests - then_requests)
        tokens += others * (held.tokens - then_tokens)
        share, limits = others / (others + 1), self._limits_of(replica_id)
        return (
            held.requests + min(max(requests, 0.0), share * limits.max_requests),
            held.tokens + min(max(tokens, 0.0), share * limits.max_tokens),
        )

    def _limits_of(self, replica_id: str) -> ReplicaLimits:
        report = self._reports.get(replica_id)
        return self._limits if report is None or report.limits is None else report.limits

    def _view(self, report: Report, now_s: float, held: _Held) -> ReplicaView:
        requests, tokens = self._in_flight(report.replica_id, held)
        limits = self._limits_of(report.replica_id)
        return ReplicaView(
            replica_id=report.replica_id,
            in_flight_tokens=tokens,
            in_flight_requests=requests,
            max_requests=limits.max_requests,
            max_tokens=limits.max_tokens,
            report=EngineReport(
                age_s=now_s - report.sent_s,
                running=report.running,
                waiting=report.waiting,
                kv_usage=report.kv_usage,
            ),
        )

    def _request(self, ask: Ask, *, replicas: int) -> RouteRequest:
        avoid = self._avoid(ask)
        if self._prefixes is None or not ask.prefix or replicas < 2:
            return RouteRequest(ask.tokens, avoid)
        return RouteRequest(ask.tokens, avoid, self._prefixes.shares(ask.prefix))

    def _avoid(self, ask: Ask) -> frozenset[str]:
        if not ask.failed:
            return _NOBODY
        names = [name for name in self._reports if name not in self._suspects]
        if any(name not in ask.failed for name in names):
            return frozenset(ask.failed)
        return frozenset(r for r, at_s in ask.failed.items() if not self._reported_after(r, at_s))


_NOBODY: frozenset[str] = frozenset()


def _slot_tokens(limits: ReplicaLimits) -> float:
    """A slot's share of a replica."""
    return limits.max_tokens / limits.max_requests


def _free_slots(view: ReplicaView) -> float:
    """Slots that are left on a replica: of its batch, or by their share of its KV cache."""
    share = view.max_tokens / view.max_requests
    return max(
        0.0,
        min(
            view.max_requests - view.in_flight_requests,
            (view.max_tokens - view.in_flight_tokens) / share,
        ),
    )
