"""Which degradation tier does the service run in?

A map from saturation to tier with memory: tier k+1 is entered after saturation has been at or
above enter[k+1] for `enter_s` with the gate open (`autoscaler.saturation`), tier k is left after
saturation has been below leave[k] < enter[k] for `leave_s`. One tier per step, both ways; every
change starts the delays anew.

From tier 3 on the measured load no longer shows the demand: traffic was moved or refused. So the
light pool's saturation counts too, and while the arrivals (moved and refused ones included) exceed
`fit_ratio` of the main pool's capacity, a tier is left only after `probe_s`: late enough not to
oscillate, bounded in case the capacity is underestimated.

Without a light pool tier 3 keeps its number and acts like tier 2. Without data the tier is held
for `fail_open_s`, then steps down every `leave_s`: unknown is not overload.

Invariant: for equal capacity, a load that is nowhere lower never leads to a lighter tier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoscaler.guards import held, since
from autoscaler.params import MAIN_POOL, TierParams
from autoscaler.reasons import Action, Reason
from autoscaler.saturation import Pressure
from autoscaler.snapshot import Decision, Tier


@dataclass(frozen=True, kw_only=True)
class TierState:
    """What degradation remembers.

    `full_since_s`, `calm_since_s`: since when the next tier's enter condition, or this tier's
    leave condition, has held. `blind_since_s`: since when there is no data. `normal_since_s`:
    since when the tier is NORMAL. `light_warm`: whether the light pool is kept warm. `hold`:
    reason last held for.
    """

    tier: Tier = Tier.NORMAL
    full_since_s: float | None = None
    calm_since_s: float | None = None
    blind_since_s: float | None = None
    normal_since_s: float | None = None
    light_warm: bool = False
    hold: str = ""


@dataclass(frozen=True, kw_only=True)
class TierVerdict:
    """The outcome of one step. `saturation` is None without data."""

    state: TierState
    saturation: float | None
    decision: Decision | None = None


def step_tier(
    state: TierState,
    main: Pressure | None,
    *,
    light: Pressure | None,
    now_s: float,
    params: TierParams,
) -> TierVerdict:
    """One step of the tier. `main`, `light`: None if unknown, or if there is no light pool."""
    if main is None:
        return _blind(state, now_s=now_s, params=params)
    if state.blind_since_s is not None:
        state = replace(state, blind_since_s=None, calm_since_s=None)
    moved = light if state.tier >= Tier.LIGHT_MODEL else None
    pools = [main] if moved is None else [main, moved]
    saturation = max(pool.saturation for pool in pools)
    numbers = dict(main.numbers) | {"saturation": saturation}
    if moved is not None:
        numbers["light_saturation"] = moved.saturation

    tier = state.tier
    full = [p for p in pools if tier < Tier.SHED and p.saturation >= params.enter[tier]]
    pressing = [p for p in full if p.gate]
    calm = tier > Tier.NORMAL and saturation < params.leave[tier - 1]
    state = replace(
        state,
        full_since_s=since(state.full_since_s, holds=bool(pressing), now_s=now_s),
        calm_since_s=since(state.calm_since_s, holds=calm, now_s=now_s),
    )
    if pressing and held(state.full_since_s, params.enter_s, now_s=now_s):
        why = f"saturated, and {pressing[0].gate}"
        return _move(
            state,
            1,
            kind=Reason.SATURATED,
            why=why,
            saturation=saturation,
            numbers=numbers,
            now_s=now_s,
        )
    if calm:
        arriving = main.arriving
        if moved is not None:  # what they would be on the main pool, as its plan has it
            arriving += moved.arrival_tokens_per_s / main.replica_tokens_per_s
        numbers |= {"arriving": arriving, "capacity": main.capacity}
        fits = arriving <= params.fit_ratio * main.capacity
        waits = tier >= Tier.LIGHT_MODEL and not fits
        if held(state.calm_since_s, params.probe_s if waits else params.leave_s, now_s=now_s):
            return _move(
                state,
                -1,
                kind=Reason.PROBE if waits else Reason.CALM,
                why="probes whether the load fits" if waits else "calm again",
                saturation=saturation,
                numbers=numbers,
                now_s=now_s,
            )
        if waits:
            why = "the demand behind it exceeds the capacity"
            kind = Reason.DEMAND_EXCEEDS
            return _hold(state, kind=kind, why=why, saturation=saturation, numbers=numbers)
    if full and not pressing:
        why = "saturated, but more replicas can still come"
        kind = Reason.REPLICAS_COME
        return _hold(state, kind=kind, why=why, saturation=saturation, numbers=numbers)
    return TierVerdict(state=replace(state, hold=""), saturation=saturation)


def light_floor(
    state: TierState, *, now_s: float, minimum: int, params: TierParams
) -> tuple[TierState, int]:
    """The fewest replicas the light pool may have now, and the state that remembers why.

    One is started at SHORT_OUTPUT, before the tier that needs it, and kept until the tier has
    been NORMAL for `light_release_s`.
    """
    normal = since(state.normal_since_s, holds=state.tier is Tier.NORMAL, now_s=now_s)
    warm = state.tier >= Tier.SHORT_OUTPUT or (
        state.light_warm and not held(normal, params.light_release_s, now_s=now_s)
    )
    state = replace(state, normal_since_s=normal, light_warm=warm)
    return state, max(minimum, 1) if warm else minimum


def _blind(state: TierState, *, now_s: float, params: TierParams) -> TierVerdict:
    blind_s = now_s if state.blind_since_s is None else state.blind_since_s
    failing_open = state.tier > Tier.NORMAL and held(blind_s, params.fail_open_s, now_s=now_s)
    # The first step down comes at once when blindness has lasted; the next ones after leave_s.
    calm_s = state.calm_since_s if state.blind_since_s is not None else None
    state = replace(state, blind_since_s=blind_s, full_since_s=None, calm_since_s=calm_s)
    numbers: dict[str, float] = {"blind_s": now_s - blind_s}
    if failing_open and (calm_s is None or held(calm_s, params.leave_s, now_s=now_s)):
        verdict = _move(
            state,
            -1,
            kind=Reason.NO_DATA_FOR_LONG,
            why="no data for long, unknown is not overload",
            saturation=None,
            numbers=numbers,
            now_s=now_s,
        )
        return replace(verdict, state=replace(verdict.state, calm_since_s=now_s))
    if state.tier is Tier.NORMAL:
        return TierVerdict(state=replace(state, hold=""), saturation=None)
    return _hold(
        state,
        kind=Reason.TIER_BLIND,
        why="size or load is unknown",
        saturation=None,
        numbers=numbers,
    )


def _move(
    state: TierState,
    by: int,
    *,
    kind: Reason,
    why: str,
    saturation: float | None,
    numbers: dict[str, float],
    now_s: float,
) -> TierVerdict:
    tier = Tier(state.tier + by)
    return TierVerdict(
        state=replace(
            state,
            tier=tier,
            full_since_s=None,
            calm_since_s=None,
            normal_since_s=now_s if tier is Tier.NORMAL else None,
            hold="",
        ),
        saturation=saturation,
        decision=Decision(
            action=Action.TIER,
            pool=MAIN_POOL,
            value=int(tier),
            kind=kind,
            reason=f"tier {state.tier.name} to {tier.name}: {why}",
            numbers=tuple(sorted(numbers.items())),
        ),
    )


def _hold(
    state: TierState,
    *,
    kind: Reason,
    why: str,
    saturation: float | None,
    numbers: dict[str, float],
) -> TierVerdict:
    reason = f"keeps tier {state.tier.name}: {why}"
    if reason == state.hold:
        return TierVerdict(state=state, saturation=saturation)
    return TierVerdict(
        state=replace(state, hold=reason),
        saturation=saturation,
        decision=Decision(
            action=Action.HOLD,
            pool=MAIN_POOL,
            value=int(state.tier),
            kind=kind,
            reason=reason,
            numbers=tuple(sorted(numbers.items())),
        ),
    )
