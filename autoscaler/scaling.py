"""How many replicas should a pool be asked for, and when?

    wanted = clamp( max(need(u_target), min(base, need(u_down))), floor, maximum )

`need(u)` is what the load needs at utilisation u (`autoscaler.need`); `base` is what has
been asked for, pending replicas included. need(u_down) >= need(u_target), so between the two the
pool is left alone: it shrinks only if the survivors stay at or under u_down, which is the
N/(N-1) check, and the gap is the hysteresis.

Four numbers, kept apart: desired (`wanted`, every tick) -> target (what Serve acknowledged)
-> requested (what we last asked for, kept in the state) -> ready (what answers).

Invariants: floor <= value <= maximum in every decision; one decision moves at most a step, except
into the bounds; `wanted` is monotone in load; unknown load or size never changes a pool; nothing
is removed while a backlog exists or the service is degraded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autoscaler.forecast_step import ForecastState
from autoscaler.guards import clamp, held, limit_step, since
from autoscaler.headroom import HeadroomState
from autoscaler.need import Demand, replicas_for
from autoscaler.params import ScalingParams
from autoscaler.reasons import Action, Reason
from autoscaler.snapshot import Decision, LoadObservation
from autoscaler.view import PoolView


@dataclass(frozen=True, kw_only=True)
class PoolState:
    """What scaling remembers of a pool.

    `requested`: replicas last asked for, None before the pool was first seen. `requested_s`: when,
    None once Serve has acknowledged it. `more_since_s`, `fewer_since_s`: since when more, or
    fewer, replicas are wanted. `fewer_peak`: most replicas wanted since then. `pending`,
    `pending_since_s`: pending replicas, and since when this many. `hold`: reason last held for.
    """

    pool: str
    requested: int | None = None
    requested_s: float | None = None
    more_since_s: float | None = None
    fewer_since_s: float | None = None
    fewer_peak: int = 0
    pending: int = 0
    pending_since_s: float | None = None
    forecast: ForecastState = field(default_factory=ForecastState)
    headroom: HeadroomState = field(default_factory=HeadroomState)
    hold: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of one step of one pool: how many are `desired`, and the decision if any.

    `desired` is None until the pool's size was first observed.
    """

    state: PoolState
    desired: int | None
    decision: Decision | None = None


def reconcile(state: PoolState, view: PoolView, *, ack_timeout_s: float | None) -> PoolState:
    """The state with `requested` brought in line with what Serve has as target.

    A target that differs from an acknowledged request was changed by someone else, a request
    unacknowledged for `ack_timeout_s` (None: never) got lost: in both cases the actual target
    counts and the delays start anew.
    """
    if view.size is None:
        return state
    state = _track_pending(state, view.size.pending, now_s=view.now_s)
    target = view.size.target
    if state.requested is None or state.requested == target:
        return replace(state, requested=target, requested_s=None)
    if state.requested_s is not None:
        waited_s = view.now_s - state.requested_s
        if ack_timeout_s is None or waited_s <= ack_timeout_s:
            return state
    return replace(state, requested=target, requested_s=None, more_since_s=None, fewer_since_s=None)


def scale_pool(
    state: PoolState,
    view: PoolView,
    *,
    forecast: float | None,
    carried: float | None,
    floor: int,
    keep: str = "",
    params: ScalingParams,
) -> Verdict:
    """One step of one pool.

    `state` is reconciled; `forecast` is of replicas kept busy; `carried`: replicas for it, headroom
    included; `floor` replaces the pool's minimum (it is higher while the light pool is kept warm);
    `keep` says why the pool may not shrink now, empty if it may.
    """
    base = state.requested
    if base is None or view.size is None or view.size.moving:
        unknown = base is None or view.size is None
        kind = Reason.DATA_MISSING if unknown else Reason.LAYOUT_MOVES
        why = view.fault if view.size is None else view.size.moving
        return _hold(_reset(state), desired=base, kind=kind, why=why, numbers=dict(view.ages))
    floor = min(floor, view.most)
    bounded = clamp(base, minimum=floor, maximum=view.most)
    if bounded != base:
        why = "below its floor" if bounded > base else view.limit_why or "above its maximum"
        bounds = {"base": base, "floor": floor, "maximum": view.most}
        return _ask(
            state,
            bounded,
            desired=bounded,
            kind=Reason.OUT_OF_BOUNDS,
            why=why,
            numbers=bounds,
            now_s=view.now_s,
        )
    if view.load is None or forecast is None or carried is None:
        return _hold(
            _reset(state),
            desired=base,
            kind=Reason.DATA_MISSING,
            why=view.fault,
            numbers=dict(view.ages),
        )

    busy = view.busy
    demand = _demand(view, view.load, carried * params.target_utilisation, params=params)
    need_up, need_down = (
        replicas_for(demand, view.pool.capacity, utilisation=utilisation)
        for utilisation in (params.target_utilisation, params.down_utilisation)
    )
    # More than the batcher's share.
    if busy.queued_s > params.backlog_s * view.capacity:
        keep = "a backlog is left"
    numbers = {
        "ready": float(view.size.ready),
        "pending": float(view.size.pending),
        "arriving": busy.arriving,
        "forecast": forecast,
        "carried": carried,
        "queued_s": busy.queued_s,
        "delivered": view.delivered,
        "in_flight_tokens": view.load.in_flight_tokens,
        "queued_tokens": view.load.queued_tokens,
        "base": float(base),
        "need": float(need_up),
    }
    wanted = max(need_up, base if keep else min(base, need_down))
    desired = clamp(wanted, minimum=floor, maximum=view.most)
    numbers["desired"] = float(desired)
    state = _note(state, base, desired, now_s=view.now_s)
    if desired != base:
        change = _grow if desired > base else _shrink
        return change(state, desired, params=params, numbers=numbers, now_s=view.now_s)
    if need_up > desired:
        kind, why = Reason.AT_MAXIMUM, view.limit_why or "at its maximum"
    elif keep and need_down < base and base > floor:
        kind, why = Reason.KEPT, keep
    else:
        return Verdict(state=replace(state, hold=""), desired=desired)
    return _hold(state, desired=desired, kind=kind, why=why, numbers=numbers)


def _demand(
    view: PoolView, load: LoadObservation, arrivals: float, *, params: ScalingParams
) -> Demand:
    """What the pool has to carry: `arrivals` (replicas kept busy), and what has piled up.

    While its only replicas are starting, what piles up says nothing about load: it waits for the
    start, and a further start beside it would make both slower.
    """
    if view.size is not None and view.size.ready == 0 and view.size.pending > 0:
        return Demand(busy=arrivals / view.delivered, in_flight_tokens=0.0)
    return Demand(
        busy=(arrivals + view.busy.queued_s / params.drain_s) / view.delivered,
        in_flight_tokens=load.in_flight_tokens + load.queued_tokens,
    )


def _grow(
    state: PoolState,
    desired: int,
    *,
    params: ScalingParams,
    numbers: Mapping[str, float],
    now_s: float,
) -> Verdict:
    if not held(state.more_since_s, params.up_delay_s, now_s=now_s):
        why = "the up delay runs"
        return _hold(state, desired=desired, kind=Reason.UP_DELAY, why=why, numbers=numbers)
    base = int(numbers["base"])
    value = limit_step(base, desired, up=params.max_step_up, down=params.max_step_down)
    why = "the load needs more" if value == desired else "the load needs more, one step at a time"
    return _ask(
        state,
        value,
        desired=desired,
        kind=Reason.LOAD_NEEDS_MORE,
        why=why,
        numbers=numbers,
        now_s=now_s,
    )


def _shrink(
    state: PoolState,
    desired: int,
    *,
    params: ScalingParams,
    numbers: Mapping[str, float],
    now_s: float,
) -> Verdict:
    if not held(state.fewer_since_s, params.down_delay_s, now_s=now_s):
        why = "the down delay runs"
        return _hold(state, desired=desired, kind=Reason.DOWN_DELAY, why=why, numbers=numbers)
    base = int(numbers["base"])
    value = limit_step(
        base, max(desired, state.fewer_peak), up=params.max_step_up, down=params.max_step_down
    )
    if value == 0 and not held(state.fewer_since_s, params.to_zero_delay_s, now_s=now_s):
        if base == 1:
            why = "the delay to zero runs"
            return _hold(state, desired=desired, kind=Reason.ZERO_DELAY, why=why, numbers=numbers)
        value = 1
    why = "the others carry the load" if value > 0 else "there is no load"
    kind = Reason.OTHERS_CARRY if value > 0 else Reason.NO_LOAD
    return _ask(state, value, desired=desired, kind=kind, why=why, numbers=numbers, now_s=now_s)


def _ask(
    state: PoolState,
    value: int,
    *,
    desired: int,
    kind: Reason,
    why: str,
    numbers: Mapping[str, float],
    now_s: float,
) -> Verdict:
    base = int(numbers["base"])
    return Verdict(
        state=replace(_reset(state), requested=value, requested_s=now_s, hold=""),
        desired=desired,
        decision=Decision(
            action=Action.SCALE,
            pool=state.pool,
            value=value,
            kind=kind,
            reason=f"{base} to {value} replicas: {why}",
            numbers=tuple(sorted((name, float(n)) for name, n in numbers.items())),
        ),
    )


def _hold(
    state: PoolState,
    *,
    desired: int | None,
    kind: Reason,
    why: str,
    numbers: Mapping[str, float],
) -> Verdict:
    kept = 0 if state.requested is None else state.requested
    reason = f"keeps {'its' if state.requested is None else kept} replicas: {why}"
    if reason == state.hold:
        return Verdict(state=state, desired=desired)
    return Verdict(
        state=replace(state, hold=reason),
        desired=desired,
        decision=Decision(
            action=Action.HOLD,
            pool=state.pool,
            value=kept,
            kind=kind,
            reason=reason,
            numbers=tuple(sorted((name, float(n)) for name, n in numbers.items())),
        ),
    )


def _note(state: PoolState, base: int, desired: int, *, now_s: float) -> PoolState:
    fewer = desired < base
    peak = max(desired, state.fewer_peak) if state.fewer_since_s is not None else desired
    return replace(
        state,
        more_since_s=since(state.more_since_s, holds=desired > base, now_s=now_s),
        fewer_since_s=since(state.fewer_since_s, holds=fewer, now_s=now_s),
        fewer_peak=peak if fewer else 0,
    )


def _reset(state: PoolState) -> PoolState:
    return replace(state, more_since_s=None, fewer_since_s=None, fewer_peak=0)


def _track_pending(state: PoolState, pending: int, *, now_s: float) -> PoolState:
    if pending == state.pending:
        return state
    return replace(state, pending=pending, pending_since_s=now_s if pending else None)
