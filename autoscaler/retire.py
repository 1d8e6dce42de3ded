"""How is a replica that leaks replaced without a lost request?

    none ─► SURGE ─► DRAIN ─► REPLACE ─► none
              │                  ▲
              └── no room ─► DRAIN

SURGE asks for one replica more and waits for it. DRAIN leaves the replica out of routing (RETIRE)
until it has nothing to do. RESTART ends it, and REPLACE waits for what Serve starts instead.
Without room for one more it is drained first; if it is the only one, the gateways' lines hold what
comes meanwhile. The replica more is given back by the rule of scaling, once none is being
replaced: until then the pool keeps its size, since Serve would choose any victim.

Invariants: one replica of a pool at a time; none while the service is degraded, unless its ceiling
is near; no replica is ended before another answers, where there was one or room for one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoscaler.guards import held, since
from autoscaler.leak_params import LeakParams
from autoscaler.leaks import Leak
from autoscaler.reasons import Action, Reason
from autoscaler.retirement import Phase, Retired, Retirement, RetireState
from autoscaler.scaling import PoolState
from autoscaler.snapshot import Decision, PoolObservation, ReplicaObservation, Tier
from autoscaler.view import PoolView

# Reports come every second and may be late: silent for longer, a replica is gone.
_GONE_S = 10.0
# A start that takes this many cold starts is not coming.
_OVERDUE = 1.5
# Where no other answers, all that comes waits for those answers and for the start after them.
_ALONE_S = 20.0
_AGAIN_S = 30.0  # after which a restart that has not happened is asked for once more


def step_retirement(
    state: RetireState,
    pool: PoolState,
    view: PoolView,
    leak: Leak | None,
    *,
    tier: Tier,
    params: LeakParams,
) -> Retired:
    """One step of one pool. `pool` is reconciled; `leak`: the worst there is now."""
    size = view.size
    if size is None or pool.requested is None:
        return Retired(state=state, pool=pool)
    step = _Step(state=state, pool=pool, view=view, size=size, base=pool.requested, params=params)
    if state.current is None:
        return step.begin(leak, tier=tier)
    gone_since_s = since(
        state.current.gone_since_s,
        holds=step.seen(state.current.leak.replica_id) is None,
        now_s=view.now_s,
    )
    current = replace(state.current, gone_since_s=gone_since_s)
    match current.phase:
        case Phase.SURGE:
            return step.surge(current)
        case Phase.DRAIN:
            return step.drain(current, tier=tier)
        case Phase.REPLACE:
            return step.replace(current)


def advise(state: RetireState, leak: Leak | None) -> tuple[RetireState, tuple[Decision, ...]]:
    """What is told where nobody carries it out: each replica that leaks, once."""
    if leak is None or leak.replica_id == state.hold:
        return state, ()
    reason = f"{_named(leak)} should be replaced: {leak.reason}"
    decision = Decision(
        action=Action.RETIRE,
        pool=state.pool,
        value=0,
        kind=Reason.LEAK,
        reason=reason,
        numbers=leak.numbers,
        subject=leak.replica_id,
    )
    return replace(state, hold=leak.replica_id), (decision,)


@dataclass(frozen=True, kw_only=True)
class _Step:
    """The step of one phase. `base`: replicas asked for now."""

    state: RetireState
    pool: PoolState
    view: PoolView
    size: PoolObservation
    base: int
    params: LeakParams

    @property
    def now_s(self) -> float:
        return self.view.now_s

    def seen(self, replica_id: str) -> ReplicaObservation | None:
        return next((r for r in self.size.replicas if r.replica_id == replica_id), None)

    def begin(self, leak: Leak | None, *, tier: Tier) -> Retired:
        if leak is None:
            return Retired(state=self.state, pool=self.pool)
        if self.now_s < self.state.rest_until_s:
            tried = Retired(state=self.state, pool=self.pool)
            return tried if self.state.hold else self._hold(leak, "one was replaced just now")
        if tier > Tier.NORMAL and not leak.urgent:
            return self._hold(leak, "the service is degraded")
        if self.size.pending > 0 and not leak.urgent:
            return self._hold(leak, "others are starting")
        current = Retirement(
            leak=leak,
            phase=Phase.SURGE,
            since_s=self.now_s,
            base=self.base,
            others=self.size.ready > 1,
            failure=self.size.start_failure,
        )
        if self.base >= self.view.pool.maximum:
            return self._drain(current, why="the pool is at its maximum")
        return self._scale(
            current,
            self.base + 1,
            kind=Reason.SURGE,
            why=f"one more, then {_named(leak)} goes: {leak.reason}",
        )

    def surge(self, current: Retirement) -> Retired:
        if held(current.gone_since_s, _GONE_S, now_s=self.now_s):
            return self._to(None)  # ended by itself: Serve has replaced it
        heard = any(r.replica_id != current.leak.replica_id for r in self.size.replicas)
        if heard and self.size.ready > current.base and self.size.pending == 0:
            return self._drain(current, why="another answers")
        failure = self.size.start_failure
        if failure and failure != current.failure and not current.leak.urgent:
            # What cannot start would not come back either.
            return self._give_back(
                self._hold(current.leak, f"no other starts: {failure}", rest=True), current
            )
        overdue = held(current.since_s, _OVERDUE * self.view.pool.cold_start_s, now_s=self.now_s)
        if not (self.size.unmet or overdue):
            return self._to(current)
        why = self.size.unmet or "one more does not start in time"
        return self._give_back(self._drain(current, why=why), current)

    def drain(self, current: Retirement, *, tier: Tier) -> Retired:
        replica = self.seen(current.leak.replica_id)
        if held(current.gone_since_s, _GONE_S, now_s=self.now_s):
            return self._to(replace(current, phase=Phase.REPLACE, since_s=self.now_s))
        if replica is None:
            return self._to(current)
        obstacle = self._obstacle(current, tier=tier)
        if obstacle:
            return self._hold(current.leak, obstacle, rest=True)
        busy = replica.in_flight + replica.running + replica.waiting
        if busy == 0 and held(current.since_s, self.params.settle_s, now_s=self.now_s):
            return self._restart(current, why="it is empty", busy=busy)
        limit_s = self.params.drain_s if current.others else min(_ALONE_S, self.params.drain_s)
        if held(current.since_s, limit_s, now_s=self.now_s):
            return self._restart(current, why="its answers take too long", busy=busy)
        return self._to(current)

    def _obstacle(self, current: Retirement, *, tier: Tier) -> str:
        """Why a replica that drains is needed again, empty if it is not."""
        if current.leak.urgent or not current.others:
            return ""
        if self.size.ready < 2:
            return "no other replica answers any more"
        fewer = self.size.ready <= current.base
        return "the others do not carry the load" if fewer and tier > Tier.NORMAL else ""

    def replace(self, current: Retirement) -> Retired:
        # Longer than Serve needs to see it: until then its numbers count the one that is gone.
        gone = held(current.gone_since_s, _GONE_S, now_s=self.now_s)
        whole = self.size.ready >= self.base and self.size.pending == 0
        overdue = held(current.since_s, _OVERDUE * self.view.pool.cold_start_s, now_s=self.now_s)
        if gone and (whole or overdue):
            return self._to(None, rest=True)
        if current.gone_since_s is None and held(current.since_s, _AGAIN_S, now_s=self.now_s):
            return self._restart(current, why="it is still there", busy=0)
        return self._to(current)

    def _drain(self, current: Retirement, *, why: str) -> Retired:
        others = self.size.ready > 1
        current = replace(current, phase=Phase.DRAIN, since_s=self.now_s, others=others)
        reason = f"{_named(current.leak)} gets no new requests: {current.leak.reason}; {why}"
        return self._to(current, self._decide(Action.RETIRE, Reason.LEAK, reason, current.leak))

    def _restart(self, current: Retirement, *, why: str, busy: int) -> Retired:
        current = replace(current, phase=Phase.REPLACE, since_s=self.now_s)
        reason = f"{_named(current.leak)} is restarted: {current.leak.reason}; {why}"
        decision = self._decide(
            Action.RESTART, Reason.LEAK_REPLACED, reason, current.leak, busy=float(busy)
        )
        return self._to(current, decision)

    def _scale(self, current: Retirement, value: int, *, kind: Reason, why: str) -> Retired:
        decision = Decision(
            action=Action.SCALE,
            pool=self.state.pool,
            value=value,
            kind=kind,
            reason=f"{self.base} to {value} replicas: {why}",
            numbers=(("ready", float(self.size.ready)),),
        )
        asked = replace(
            self.pool,
            requested=value,
            requested_s=self.now_s,
            more_since_s=None,
            fewer_since_s=None,
            fewer_peak=0,
        )
        return replace(self._to(current, decision), pool=asked)

    def _give_back(self, step: Retired, current: Retirement) -> Retired:
        """The step, and the one more that has not come is asked for no longer."""
        if self.base != current.base + 1:
            return step  # the load has asked for more, or somebody by hand
        why = "the one more does not come"
        back = self._scale(current, current.base, kind=Reason.SURGE_GIVEN_BACK, why=why)
        return replace(step, pool=back.pool, decisions=back.decisions + step.decisions)

    def _hold(self, leak: Leak, why: str, *, rest: bool = False) -> Retired:
        reason = f"{_named(leak)} is not replaced now: {leak.reason}; {why}"
        told = f"{leak.replica_id} {why}"
        step = self._to(None, rest=rest)
        hold = self._decide(Action.HOLD, Reason.LEAK_HELD, reason, leak)
        decisions = () if told == self.state.hold else (hold,)
        return replace(step, state=replace(step.state, hold=told), decisions=decisions)

    def _decide(
        self, action: Action, kind: Reason, reason: str, leak: Leak, **more: float
    ) -> Decision:
        return Decision(
            action=action,
            pool=self.state.pool,
            value=self.base,
            kind=kind,
            reason=reason,
            numbers=(*leak.numbers, *sorted(more.items())),
            subject=leak.replica_id,
        )

    def _to(self, current: Retirement | None, *decisions: Decision, rest: bool = False) -> Retired:
        until_s = self.now_s + self.params.rest_s if rest else self.state.rest_until_s
        state = replace(self.state, current=current, rest_until_s=until_s, hold="")
        return Retired(state=state, pool=self.pool, decisions=decisions)


def _named(leak: Leak) -> str:
    return f"replica {leak.replica_id}"
