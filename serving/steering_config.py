"""What can an operator set about steering, and what does the controller make of it and the plan?"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from autoscaler.params import (
    ControllerParams,
    Mode,
    PoolParams,
    ScalingParams,
    TierParams,
)
from cluster.model.plan import Plan, PoolSection
from cluster.pool_capacity import in_flight_tokens, request_tokens
from cluster.pool_ledger import ARRIVAL_WINDOW_S
from serving.config_section import Section
from serving.forecast_config import ForecastSection, forecast_params


class SteeringSection(Section):
    """How the controller steers; see docs/policies.md for every number.

    `cold_start_s`: from asking for a replica to its first answer, as measured on this hardware.
    """

    mode: Literal["active", "advisory"] = "active"
    tick_s: float = Field(default=1.0, gt=0)
    cold_start_s: float = Field(default=60.0, ge=0)
    target_utilisation: float = 0.8
    down_utilisation: float = 0.6
    up_delay_s: float = 4.0
    down_delay_s: float = 60.0
    to_zero_delay_s: float = 600.0
    tier_enter_s: float = 5.0
    tier_leave_s: float = 20.0
    tier_probe_s: float = 120.0
    wait_limit_s: float = 10.0
    light_release_s: float = 120.0
    forecast: ForecastSection = Field(default_factory=ForecastSection)


def controller_params(plan: Plan, steering: SteeringSection) -> ControllerParams:
    """Steering parameters of a plan: bounds and capacities from the pools, the rest as set."""
    pools = tuple(_pool_params(pool, plan=plan, steering=steering) for pool in plan.pools)
    return steering_params(pools, steering)


def steering_params(pools: tuple[PoolParams, ...], steering: SteeringSection) -> ControllerParams:
    """Steering parameters of pools whose capacities are known, the rest as set."""
    return ControllerParams(
        pools=pools,
        forecast=forecast_params(steering.forecast),
        scaling=ScalingParams(
            target_utilisation=steering.target_utilisation,
            down_utilisation=steering.down_utilisation,
            up_delay_s=steering.up_delay_s,
            down_delay_s=steering.down_delay_s,
            to_zero_delay_s=steering.to_zero_delay_s,
        ),
        tiers=TierParams(
            enter_s=steering.tier_enter_s,
            leave_s=steering.tier_leave_s,
            probe_s=steering.tier_probe_s,
            wait_limit_s=steering.wait_limit_s,
            light_release_s=steering.light_release_s,
        ),
        mode=Mode(steering.mode),
        tick_s=steering.tick_s,
        stale_after_s=max(10.0, 3.0 * steering.tick_s),
        load_window_s=ARRIVAL_WINDOW_S,
        ack_timeout_s=max(30.0, steering.tick_s),
    )


def _pool_params(pool: PoolSection, *, plan: Plan, steering: SteeringSection) -> PoolParams:
    # Without an expectation: as many predicted tokens a second as it holds, turned over in 10 s.
    held = in_flight_tokens(pool, plan=plan)
    rate = (
        pool.expected.goodput_rps * request_tokens(plan)
        if pool.expected is not None and pool.expected.goodput_rps > 0
        else held / 10.0
    )
    return PoolParams(
        pool=pool.name,
        minimum=pool.replicas.minimum,
        maximum=pool.replicas.maximum,
        capacity_tokens_per_s=rate,
        capacity_in_flight_tokens=held,
        cold_start_s=steering.cold_start_s,
    )
