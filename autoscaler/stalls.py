"""Which replicas are frozen, and not merely busy?

    stalled_s = min( how long it has owed anybody a token, how long its engine has not stepped )
    stalled    when stalled_s >= limit,
    limit      = twice the slowest step that was survived lately, within [stall_s, patience_s]

A replica that steps, or whose tokens reach anybody, is alive however slow; a slow step that came to
its end makes the rule more patient (an adaptive limit, in the spirit of Hayashibara et al., "The
phi accrual failure detector", 2004). One that Serve routes to and that has never said a word is
stalled after `unheard_s`.

Invariants: none is restarted whose engine steps, nor one that owes nothing and has reported; at
most `max_at_once` of a pool at a time; while most of a pool looks stalled, or the observers are
late themselves, nobody is restarted until the stall has lasted `hold_s` longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autoscaler.fault_params import FaultParams
from autoscaler.reasons import Action, Reason
from autoscaler.snapshot import Decision, ReplicaObservation
from autoscaler.view import PoolView


@dataclass(frozen=True, kw_only=True)
class ReplicaMemory:
    """What is remembered of a replica.

    `seen_s`: when it was first seen. `steps`, `stepped_s`: of its engine, and since when that many.
    `stalled_s`: as of the last tick. `ordered_s`: when its restart was ordered, None if it was not.
    """

    replica_id: str
    seen_s: float
    steps: int
    stepped_s: float
    stalled_s: float = 0.0
    ordered_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class StallState:
    """What is remembered of a pool. `slowest_s`: longest stall that was none, seen `slowest_at_s`.

    `hold`: the reason last held for.
    """

    replicas: tuple[ReplicaMemory, ...] = ()
    slowest_s: float = 0.0
    slowest_at_s: float = 0.0
    hold: str = ""


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A replica that looks faulty: what is wrong, and for how long more than it may be."""

    memory: ReplicaMemory
    kind: Reason
    why: str
    over_s: float
    certain: bool
    numbers: tuple[tuple[str, float], ...]


def step_stalls(
    state: StallState, view: PoolView, *, disturbed: str, params: FaultParams
) -> tuple[StallState, tuple[Decision, ...]]:
    """One step of one pool. `disturbed`: why what is seen may be the observers' fault, or empty."""
    if view.size is None:
        return state, ()
    now_s = view.now_s
    state = _remember(state, view.size.replicas, now_s=now_s, params=params)
    memories = {memory.replica_id: memory for memory in state.replicas}
    limit_s = _limit_s(state, params=params)
    cases = [
        case
        for replica in view.size.replicas
        if (
            case := _case(
                replica, memories[replica.replica_id], limit_s, now_s=now_s, params=params
            )
        )
    ]
    uncertain = sum(not case.certain for case in cases)
    if uncertain > 1 and 2 * uncertain > len(view.size.replicas):
        disturbed = disturbed or "most of the pool looks stalled at once"
    due = [case for case in cases if case.certain or not disturbed or case.over_s >= params.hold_s]
    under_way = sum(_under_way(memory, now_s=now_s, params=params) for memory in state.replicas)
    free = max(0, params.max_at_once - under_way)
    # Those that have been ordered are given time; the longest stalled go first.
    chosen = sorted(
        (case for case in due if not _under_way(case.memory, now_s=now_s, params=params)),
        key=lambda case: (-case.over_s, case.memory.replica_id),
    )[:free]
    ordered = {case.memory.replica_id for case in chosen}
    state = replace(
        state,
        replicas=tuple(
            replace(memory, ordered_s=now_s) if memory.replica_id in ordered else memory
            for memory in state.replicas
        ),
    )
    decisions = tuple(_restart(case, view) for case in chosen)
    if disturbed and len(due) < len(cases):
        return _held(state, view, disturbed, cases, decisions, limit_s=limit_s)
    return replace(state, hold=""), decisions


def _remember(
    state: StallState,
    replicas: tuple[ReplicaObservation, ...],
    *,
    now_s: float,
    params: FaultParams,
) -> StallState:
    before = {memory.replica_id: memory for memory in state.replicas}
    memories = tuple(_renewed(before.get(r.replica_id), r, now_s=now_s) for r in replicas)
    # A stall that ended by itself was a slow step.
    survived = [
        old.stalled_s
        for new in memories
        if (old := before.get(new.replica_id)) is not None and new.stalled_s < old.stalled_s
    ]
    slowest_s, slowest_at_s = state.slowest_s, state.slowest_at_s
    if now_s - slowest_at_s > params.memory_s:
        slowest_s = 0.0
    if survived and max(survived) >= slowest_s:
        slowest_s, slowest_at_s = max(survived), now_s
    return replace(state, replicas=memories, slowest_s=slowest_s, slowest_at_s=slowest_at_s)


def _renewed(
    memory: ReplicaMemory | None, replica: ReplicaObservation, *, now_s: float
) -> ReplicaMemory:
    if memory is None:
        memory = ReplicaMemory(
            replica_id=replica.replica_id, seen_s=now_s, steps=replica.steps, stepped_s=now_s
        )
    elif memory.steps != replica.steps:
        memory = replace(memory, steps=replica.steps, stepped_s=now_s)
    owed_s = replica.owed_s if math.isfinite(replica.owed_s) else 0.0
    return replace(memory, stalled_s=max(0.0, min(owed_s, now_s - memory.stepped_s)))


def _limit_s(state: StallState, *, params: FaultParams) -> float:
    return min(params.patience_s, max(params.stall_s, 2.0 * state.slowest_s))


def _case(
    replica: ReplicaObservation,
    memory: ReplicaMemory,
    limit_s: float,
    *,
    now_s: float,
    params: FaultParams,
) -> _Case | None:
    known_s = now_s - memory.seen_s
    heard = math.isfinite(replica.observed_s)
    numbers = (
        ("in_flight", float(replica.in_flight)),
        ("known_s", known_s),
        ("limit_s", limit_s),
        ("owed_s", replica.owed_s if math.isfinite(replica.owed_s) else 0.0),
        ("steps", float(replica.steps)),
        ("unstepped_s", now_s - memory.stepped_s),
        *((("report_age_s", now_s - replica.observed_s),) if heard else ()),
    )
    if replica.device_fault:
        kind, over_s = Reason.DEVICE_FAULT, math.inf
        why = f"a device of it is faulty: {replica.device_fault}"
    elif memory.stalled_s >= limit_s:
        kind, over_s = Reason.STALLED, memory.stalled_s - limit_s
        why = "it owes a token and its engine does not step"
    elif not heard and known_s >= params.unheard_s:
        kind, over_s = Reason.NEVER_REPORTED, known_s - params.unheard_s
        why = "it has started and has never reported"
    else:
        return None
    certain = bool(replica.device_fault)
    return _Case(memory=memory, kind=kind, why=why, over_s=over_s, certain=certain, numbers=numbers)


def _under_way(memory: ReplicaMemory, *, now_s: float, params: FaultParams) -> bool:
    return memory.ordered_s is not None and now_s - memory.ordered_s < params.retry_s


def _restart(case: _Case, view: PoolView) -> Decision:
    return Decision(
        action=Action.RESTART,
        pool=view.pool.pool,
        value=1,
        kind=case.kind,
        reason=f"restarts a replica: {case.why}",
        numbers=case.numbers,
        subject=case.memory.replica_id,
    )


def _held(
    state: StallState,
    view: PoolView,
    why: str,
    cases: list[_Case],
    decisions: tuple[Decision, ...],
    *,
    limit_s: float,
) -> tuple[StallState, tuple[Decision, ...]]:
    reason = f"restarts nothing yet: {why}"
    if reason == state.hold:
        return state, decisions
    hold = Decision(
        action=Action.HOLD,
        pool=view.pool.pool,
        value=len(cases),
        kind=Reason.RESTART_HELD,
        reason=reason,
        numbers=(
            ("limit_s", limit_s),
            ("stalled", float(len(cases))),
            ("stalled_s", max(case.memory.stalled_s for case in cases)),
        ),
    )
    return replace(state, hold=reason), (*decisions, hold)
