"""What should change now? The one step that the live cluster, the simulator and a replay share.

    step(state, snapshot, params) -> state', decisions, next tick

Pure and deterministic: the clock is `snapshot.now_s`, memory is `ControllerState`, and whoever
drives it (`serving`, `autoscaler.virtual`, `autoscaler.replay`) carries the decisions out or does
not. The order within a step: faults (which may limit what can be started), memory, main pool, tier,
light pool (whose floor follows the new tier).

Invariants: every decision has a reason and its numbers; a HOLD is told once per reason, not once
per tick; without usable data nothing is scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autoscaler.backtest import Price
from autoscaler.degradation import TierState, light_floor, step_tier
from autoscaler.delivery_rate import Delivery, step_delivery
from autoscaler.drift import DriftState, step_drift
from autoscaler.faults import FaultState, limited, step_faults, troubles
from autoscaler.forecast_step import forecast, observe
from autoscaler.headroom import HEADROOMS, Seen
from autoscaler.memory import PoolMemory, step_memory
from autoscaler.params import ControllerParams, Mode, PoolParams
from autoscaler.saturation import Pressure, pressure, retry_after_s
from autoscaler.scaling import PoolState, Verdict, reconcile, scale_pool
from autoscaler.snapshot import ClusterSnapshot, Decision, Tier
from autoscaler.view import PoolView, look


@dataclass(frozen=True, kw_only=True)
class ControllerState:
    """All the controller remembers between steps."""

    pools: tuple[PoolState, ...] = ()
    tier: TierState = field(default_factory=TierState)
    delivery: tuple[Delivery, ...] = ()
    memory: tuple[PoolMemory, ...] = ()
    drift: DriftState = field(default_factory=DriftState)
    faults: FaultState = field(default_factory=FaultState)

    def pool(self, name: str) -> PoolState:
        """What is remembered of a pool; a blank state if it was never seen."""
        return next((item for item in self.pools if item.pool == name), PoolState(pool=name))


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one step found.

    `next_tick_s`: when to step again (a time, like `now_s`). `forecast`: replicas that predicted
    arrivals keep busy, per pool, absent until its load was first seen, and by which of
    `forecasters`. `delivered`: how fast replicas work over what is planned, per pool. `desired`:
    replicas wanted per pool at this moment, before delays and steps, absent until its size was
    first seen. `saturation`: of the service, None without data. `retry_after_s`: for requests
    refused now, whole seconds. `left_out`: replicas that get no new requests. `troubles`: pools
    that are asked for no more than answers, and why.
    """

    state: ControllerState
    decisions: tuple[Decision, ...]
    next_tick_s: float
    forecast: Mapping[str, float]
    forecasters: Mapping[str, str]
    delivered: Mapping[str, float]
    desired: Mapping[str, int]
    saturation: float | None
    tier: Tier
    retry_after_s: int
    left_out: frozenset[str] = frozenset()
    troubles: Mapping[str, str] = field(default_factory=dict)


def step(state: ControllerState, snapshot: ClusterSnapshot, params: ControllerParams) -> StepResult:
    """One step. Raises InputError if the snapshot reports an unknown pool, or one twice."""
    deliveries, views = step_delivery(state.delivery, look(snapshot, params), params.delivery)
    now_s = snapshot.now_s
    faults, found_faulty = step_faults(
        state.faults, views, tick_s=params.tick_s, params=params.faults
    )
    views = tuple(limited(faults, view) for view in views)
    pools = [_observe(state.pool(view.pool.pool), view, params=params) for view in views]
    forecasts = [
        _forecast(pool, view.pool, params=params) for pool, view in zip(pools, views, strict=True)
    ]
    pools = [
        _learn(pool, view, predicted, params=params)
        for pool, view, predicted in zip(pools, views, forecasts, strict=True)
    ]
    carried = [
        _carried(pool, predicted, params=params)
        for pool, predicted in zip(pools, forecasts, strict=True)
    ]
    pressures = [
        pressure(view, pending_since_s=pool.pending_since_s, params=params.tiers)
        for pool, view in zip(pools, views, strict=True)
    ]

    memory = step_memory(state.memory, pools, views, tier=state.tier.tier, params=params)
    pools, keep = memory.scaling, [pool.retire.keep for pool in memory.pools]
    main = scale_pool(
        pools[0],
        views[0],
        forecast=forecasts[0],
        carried=carried[0],
        floor=params.main.minimum,
        # Tier 3 takes load off this pool: quality comes back before capacity goes.
        keep="the service is degraded" if state.tier.tier > Tier.NORMAL else keep[0],
        params=params.scaling,
    )
    tier = step_tier(
        state.tier,
        pressures[0],
        light=pressures[1] if params.light else None,
        now_s=now_s,
        params=params.tiers,
    )
    tier_state = tier.state
    verdicts = [main]
    if params.light is not None:
        tier_state, floor = light_floor(
            tier_state, now_s=now_s, minimum=params.light.minimum, params=params.tiers
        )
        light = scale_pool(
            pools[1],
            views[1],
            forecast=forecasts[1],
            carried=carried[1],
            floor=floor,
            keep=keep[1],
            params=params.scaling,
        )
        verdicts.append(light)

    drift, proposal = _drift(state.drift, snapshot, views[0], params=params)
    light_decisions = tuple(verdict.decision for verdict in verdicts[1:])
    found = (
        *found_faulty,
        *memory.decisions,
        main.decision,
        tier.decision,
        *light_decisions,
        proposal,
    )
    return StepResult(
        state=ControllerState(
            pools=tuple(v.state for v in verdicts),
            tier=tier_state,
            delivery=deliveries,
            memory=memory.pools,
            drift=drift,
            faults=faults,
        ),
        decisions=tuple(each for each in found if each is not None),
        next_tick_s=now_s + params.tick_s,
        forecast={p.pool: f for p, f in zip(pools, forecasts, strict=True) if f is not None},
        forecasters={p.pool: p.forecast.method(params.forecast) for p in pools},
        delivered={view.pool.pool: view.delivered for view in views},
        desired=_desired(verdicts),
        saturation=tier.saturation,
        tier=tier_state.tier,
        retry_after_s=_retry_after_s(views[0], pressures[0], params=params),
        left_out=memory.left_out,
        troubles=troubles(faults),
    )


def _observe(pool: PoolState, view: PoolView, *, params: ControllerParams) -> PoolState:
    # Nobody carries out advice, so it never times out: the last advice stays the base.
    timeout_s = None if params.mode is Mode.ADVISORY else params.ack_timeout_s
    pool = reconcile(pool, view, ack_timeout_s=timeout_s)
    if view.load is None:
        return pool
    seen = observe(
        pool.forecast,
        observed_s=view.load.observed_s,
        load=view.busy.arriving,
        horizon_s=_horizon_s(view.pool, params),
        price=_price(view, params),
        params=params.forecast,
    )
    return replace(pool, forecast=seen)


def _forecast(pool: PoolState, of: PoolParams, *, params: ControllerParams) -> float | None:
    return forecast(pool.forecast, _horizon_s(of, params), params.forecast)


def _learn(
    pool: PoolState, view: PoolView, predicted: float | None, *, params: ControllerParams
) -> PoolState:
    if view.load is None or predicted is None:
        return pool
    headroom = params.headroom
    seen = Seen(
        points=pool.forecast.history.points,
        forecast=predicted,
        horizon_s=_horizon_s(view.pool, params),
    )
    learned = HEADROOMS[headroom.method].learn(
        pool.headroom, seen, objective=headroom.objective, memory_s=headroom.memory_s
    )
    return replace(pool, headroom=learned)


def _carried(pool: PoolState, predicted: float | None, *, params: ControllerParams) -> float | None:
    if predicted is None:
        return None
    replicas = HEADROOMS[params.headroom.method].replicas
    return replicas(pool.headroom, predicted, params.scaling.target_utilisation)


def _horizon_s(pool: PoolParams, params: ControllerParams) -> float:
    return pool.cold_start_s + params.tick_s


def _price(view: PoolView, params: ControllerParams) -> Price:
    pool = view.pool
    return Price(
        capacity=view.delivered,
        utilisation=params.scaling.target_utilisation,
        minimum=pool.minimum,
        maximum=pool.maximum,
        hold_s=params.scaling.down_delay_s,
        shortage_weight=params.forecast.shortage_weight,
    )


def _drift(
    state: DriftState, snapshot: ClusterSnapshot, main: PoolView, *, params: ControllerParams
) -> tuple[DriftState, Decision | None]:
    name = params.main.pool
    return step_drift(
        state,
        next((item for item in snapshot.workloads if item.pool == name), None),
        busy=main.size is not None and bool(main.size.moving),
        now_s=snapshot.now_s,
        params=params.replan,
        stale_after_s=params.stale_after_s,
    )


def _desired(verdicts: list[Verdict]) -> dict[str, int]:
    return {v.state.pool: v.desired for v in verdicts if v.desired is not None}


def _retry_after_s(view: PoolView, main: Pressure | None, *, params: ControllerParams) -> int:
    if main is None or view.load is None:
        return retry_after_s(0.0, 0.0, params=params.tiers)
    return retry_after_s(view.busy.queued_s, main.capacity, params=params.tiers)
