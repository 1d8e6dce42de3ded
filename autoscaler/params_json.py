"""How are steering parameters written down and read back?

Every field is written and every field is required: a log with a missing field would be replayed
with today's default, which need not be what ran. Floats survive exactly (shortest repr).
"""

from __future__ import annotations

import dataclasses

from autoscaler.delivery_params import DeliveryParams
from autoscaler.fault_params import FaultParams
from autoscaler.forecast_params import ForecastParams
from autoscaler.json_reader import Json, Reader
from autoscaler.leak_params import LeakParams
from autoscaler.params import (
    ControllerParams,
    Mode,
    PoolParams,
    ScalingParams,
    TierParams,
)
from autoscaler.replan_params import Planned, ReplanMode, ReplanParams
from cluster.engine_work import EngineWork, TokenPrices


def params_to_json(params: ControllerParams) -> dict[str, Json]:
    """All parameters as JSON values."""
    return dataclasses.asdict(params)


def params_from_json(data: object, *, source: str) -> ControllerParams:
    """Inverse of `params_to_json`. Raises InputError naming `source` and the field."""
    return read_params(Reader(data, source=source))


def read_params(reader: Reader) -> ControllerParams:
    """Parameters from a reader at their object."""
    mode = reader.text("mode")
    if mode not in list(Mode):
        raise reader.error("mode", f"is '{mode}', not one of {', '.join(Mode)}.")
    params = ControllerParams(
        pools=tuple(_pool(child) for child in reader.children("pools")),
        forecast=_forecast(reader.child("forecast")),
        scaling=_scaling(reader.child("scaling")),
        tiers=_tiers(reader.child("tiers")),
        delivery=_delivery(reader.child("delivery")),
        leaks=_leaks(reader.child("leaks")),
        replan=_replan(reader.child("replan")),
        faults=_faults(reader.child("faults")),
        mode=Mode(mode),
        tick_s=reader.number("tick_s"),
        stale_after_s=reader.number("stale_after_s"),
        load_window_s=reader.number("load_window_s"),
        ack_timeout_s=reader.number("ack_timeout_s"),
    )
    reader.done()
    return params


def _pool(reader: Reader) -> PoolParams:
    work = reader.child_or_none("work")
    pool = PoolParams(
        pool=reader.text("pool"),
        minimum=reader.integer("minimum"),
        maximum=reader.integer("maximum"),
        capacity_tokens_per_s=reader.number("capacity_tokens_per_s"),
        capacity_in_flight_tokens=reader.number("capacity_in_flight_tokens"),
        cold_start_s=reader.number("cold_start_s"),
        work=None if work is None else _work(work),
    )
    reader.done()
    return pool


def _work(reader: Reader) -> EngineWork:
    work = EngineWork(
        prices=tuple(_price(child) for child in reader.children("prices")),
        context=reader.number("context"),
    )
    reader.done()
    return work


def _price(reader: Reader) -> TokenPrices:
    price = TokenPrices(
        batch=reader.number("batch"),
        prompt_token_s=reader.number("prompt_token_s"),
        output_token_s=reader.number("output_token_s"),
        context_token_s=reader.number("context_token_s"),
    )
    reader.done()
    return price


def _forecast(reader: Reader) -> ForecastParams:
    forecast = ForecastParams(
        method=reader.text("method"),
        recent_s=reader.number("recent_s"),
        history_s=reader.number("history_s"),
        season_s=reader.number("season_s"),
        refit_s=reader.number("refit_s"),
        backtest_s=reader.number("backtest_s"),
        shortage_weight=reader.number("shortage_weight"),
        switch_margin=reader.number("switch_margin"),
    )
    reader.done()
    return forecast


def _scaling(reader: Reader) -> ScalingParams:
    scaling = ScalingParams(
        policy=reader.text("policy"),
        target_utilisation=reader.number("target_utilisation"),
        down_utilisation=reader.number("down_utilisation"),
        up_delay_s=reader.number("up_delay_s"),
        down_delay_s=reader.number("down_delay_s"),
        to_zero_delay_s=reader.number("to_zero_delay_s"),
        max_step_up=reader.integer("max_step_up"),
        max_step_down=reader.integer("max_step_down"),
        drain_s=reader.number("drain_s"),
        backlog_s=reader.number("backlog_s"),
    )
    reader.done()
    return scaling


def _tiers(reader: Reader) -> TierParams:
    tiers = TierParams(
        enter=reader.numbers("enter"),
        leave=reader.numbers("leave"),
        enter_s=reader.number("enter_s"),
        leave_s=reader.number("leave_s"),
        probe_s=reader.number("probe_s"),
        fit_ratio=reader.number("fit_ratio"),
        wait_limit_s=reader.number("wait_limit_s"),
        fail_open_s=reader.number("fail_open_s"),
        overdue_factor=reader.number("overdue_factor"),
        light_release_s=reader.number("light_release_s"),
        retry_after_min_s=reader.number("retry_after_min_s"),
        retry_after_max_s=reader.number("retry_after_max_s"),
    )
    reader.done()
    return tiers


def _delivery(reader: Reader) -> DeliveryParams:
    delivery = DeliveryParams(
        least=reader.number("least"),
        most=reader.number("most"),
        half_life_s=reader.number("half_life_s"),
        prior_s=reader.number("prior_s"),
        busy_share=reader.number("busy_share"),
    )
    reader.done()
    return delivery


def _leaks(reader: Reader) -> LeakParams:
    leaks = LeakParams(
        warmup_s=reader.number("warmup_s"),
        window_s=reader.number("window_s"),
        slope_bytes_per_h=reader.number("slope_bytes_per_h"),
        host_ceiling_bytes=reader.number_or_none("host_ceiling_bytes"),
        device_ceiling_bytes=reader.number_or_none("device_ceiling_bytes"),
        over_s=reader.number("over_s"),
        urgent_s=reader.number("urgent_s"),
        settle_s=reader.number("settle_s"),
        drain_s=reader.number("drain_s"),
        rest_s=reader.number("rest_s"),
    )
    reader.done()
    return leaks


def _replan(reader: Reader) -> ReplanParams:
    mode = reader.text("mode")
    if mode not in list(ReplanMode):
        raise reader.error("mode", f"is '{mode}', not one of {', '.join(ReplanMode)}.")
    replan = ReplanParams(
        mode=ReplanMode(mode),
        band=reader.number("band"),
        hold_s=reader.number("hold_s"),
        cooldown_s=reader.number("cooldown_s"),
        min_requests=reader.integer("min_requests"),
        planned=_planned(reader.child("planned")),
    )
    reader.done()
    return replan


def _planned(reader: Reader) -> Planned:
    planned = Planned(
        prompt_tokens=reader.number("prompt_tokens"),
        output_tokens=reader.number("output_tokens"),
        requests_per_s=reader.number("requests_per_s"),
        ttft_s=reader.number("ttft_s"),
        tpot_s=reader.number("tpot_s"),
        concurrency=reader.number("concurrency"),
    )
    reader.done()
    return planned


def _faults(reader: Reader) -> FaultParams:
    faults = FaultParams(
        stall_s=reader.number("stall_s"),
        patience_s=reader.number("patience_s"),
        memory_s=reader.number("memory_s"),
        unheard_s=reader.number("unheard_s"),
        hold_s=reader.number("hold_s"),
        late_s=reader.number("late_s"),
        settle_s=reader.number("settle_s"),
        max_at_once=reader.integer("max_at_once"),
        retry_s=reader.number("retry_s"),
        start_limit_s=reader.number("start_limit_s"),
        failed_starts=reader.integer("failed_starts"),
        window_s=reader.number("window_s"),
        young_s=reader.number("young_s"),
        backoff_s=reader.number("backoff_s"),
        backoff_max_s=reader.number("backoff_max_s"),
    )
    reader.done()
    return faults
