"""What can an operator set about steering, and what does the controller make of it and the plan?"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from autoscaler.fault_params import FaultParams
from autoscaler.params import (
    ControllerParams,
    Mode,
    PoolParams,
    ScalingParams,
    TierParams,
)
from autoscaler.replan_params import Planned, ReplanMode, ReplanParams
from cluster.model.plan import Plan, PoolSection
from cluster.planned_work import planned_work
from cluster.pool_capacity import in_flight_tokens, request_tokens
from cluster.pool_ledger import ARRIVAL_WINDOW_S
from serving.settings.config_section import Section
from serving.settings.delivery_config import DeliverySection
from serving.settings.faults_config import FaultsSection
from serving.settings.forecast_config import ForecastSection, forecast_params
from serving.settings.headroom_config import HeadroomSection
from serving.settings.keeper_config import KeeperSection
from serving.settings.leak_config import LeakSection, leak_params
from serving.settings.replan_config import ReplanSection


class SteeringSection(Section):
    """How the controller steers; see docs/policies.md for every number.

    `cold_start_s`: from asking for a replica to its first answer, as measured on this hardware.
    `policy`: how load is counted, a key of `autoscaler.need.SCALING_POLICIES`.
    """

    mode: Literal["active", "advisory"] = "active"
    tick_s: float = Field(default=1.0, gt=0)
    cold_start_s: float = Field(default=60.0, ge=0)
    policy: Literal["engine_work", "token_load"] = "token_load"
    target_utilisation: float = 0.8
    down_utilisation: float = 0.75
    up_delay_s: float = 4.0
    down_delay_s: float = 120.0
    to_zero_delay_s: float = 600.0
    max_step_up: int = Field(default=16, ge=1)
    max_step_down: int = Field(default=4, ge=1)
    tier_enter_s: float = 5.0
    tier_leave_s: float = 20.0
    tier_probe_s: float = 120.0
    wait_limit_s: float = 10.0
    light_release_s: float = 120.0
    delivery: DeliverySection = Field(default_factory=DeliverySection)
    forecast: ForecastSection = Field(default_factory=ForecastSection)
    headroom: HeadroomSection = Field(default_factory=HeadroomSection)
    leaks: LeakSection = LeakSection()
    keeper: KeeperSection = KeeperSection()
    replan: ReplanSection = ReplanSection()
    faults: FaultsSection = Field(default_factory=FaultsSection)


def controller_params(plan: Plan, steering: SteeringSection) -> ControllerParams:
    """Steering parameters of a plan: bounds and capacities from the pools, the rest as set."""
    pools = tuple(_pool_params(pool, plan=plan, steering=steering) for pool in plan.pools)
    params = steering_params(pools, steering)
    return replace(params, replan=_replan_params(plan, steering.replan))


def steering_params(pools: tuple[PoolParams, ...], steering: SteeringSection) -> ControllerParams:
    """Steering parameters of pools whose capacities are known, the rest as set."""
    return ControllerParams(
        pools=pools,
        forecast=forecast_params(steering.forecast),
        headroom=steering.headroom.params(),
        scaling=ScalingParams(
            policy=steering.policy,
            target_utilisation=steering.target_utilisation,
            down_utilisation=steering.down_utilisation,
            up_delay_s=steering.up_delay_s,
            down_delay_s=steering.down_delay_s,
            to_zero_delay_s=steering.to_zero_delay_s,
            max_step_up=steering.max_step_up,
            max_step_down=steering.max_step_down,
        ),
        tiers=TierParams(
            enter_s=steering.tier_enter_s,
            leave_s=steering.tier_leave_s,
            probe_s=steering.tier_probe_s,
            wait_limit_s=steering.wait_limit_s,
            light_release_s=steering.light_release_s,
        ),
        delivery=steering.delivery.params(),
        leaks=leak_params(steering.leaks),
        faults=_fault_params(steering),
        mode=Mode(steering.mode),
        tick_s=steering.tick_s,
        stale_after_s=max(10.0, 3.0 * steering.tick_s),
        load_window_s=ARRIVAL_WINDOW_S,
        ack_timeout_s=max(30.0, steering.tick_s),
    )


def _replan_params(plan: Plan, replan: ReplanSection) -> ReplanParams:
    expected = plan.main.expected
    return ReplanParams(
        mode=ReplanMode(replan.mode),
        band=replan.band,
        hold_s=replan.hold_s,
        cooldown_s=replan.cooldown_s,
        min_requests=replan.min_requests,
        planned=Planned(
            prompt_tokens=plan.workload.isl,
            output_tokens=plan.workload.osl,
            requests_per_s=plan.workload.rate or 0.0,
            ttft_s=0.0 if expected is None else expected.ttft_s,
            tpot_s=0.0 if expected is None else expected.tpot_s,
            concurrency=0.0 if expected is None else expected.concurrency,
        ),
    )


def _pool_params(pool: PoolSection, *, plan: Plan, steering: SteeringSection) -> PoolParams:
    held = in_flight_tokens(pool, plan=plan)
    work = planned_work(pool, plan=plan)
    wanted = plan.workload
    each_s = work.of(prompt_tokens=wanted.isl, output_tokens=wanted.osl)
    return PoolParams(
        pool=pool.name,
        minimum=pool.replicas.minimum,
        maximum=pool.replicas.maximum,
        capacity_tokens_per_s=request_tokens(plan) / each_s,
        capacity_in_flight_tokens=held,
        cold_start_s=steering.cold_start_s,
        work=work,
    )


def _fault_params(steering: SteeringSection) -> FaultParams:
    faults = steering.faults
    usual_s = max(900.0, 5.0 * steering.cold_start_s)
    return FaultParams(
        stall_s=faults.stall_s,
        patience_s=faults.patience_s,
        max_at_once=faults.max_at_once,
        start_limit_s=usual_s if faults.start_limit_s is None else faults.start_limit_s,
        failed_starts=faults.failed_starts,
        window_s=faults.window_s,
        backoff_s=faults.backoff_s,
        backoff_max_s=faults.backoff_max_s,
    )
