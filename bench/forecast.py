"""Does forecasting pay? GPU-hours at equal SLO attainment, by forecaster.

    python -m bench.forecast [--quick] [--json FILE] [--trace NAME …] [--cold-start SECONDS …]

The live controller in virtual time (`autoscaler.virtual`), with its defaults but for the
forecaster, on the load of public traces (../shared/data; without them a made-up day), scaled so
that its busiest minute needs 20 replicas. "oracle" is told the load that will come at the horizon.
A token is within the SLO if hardly any wait in line as it comes (half a second's work at most);
tiers are off. Told more or less of a replica's capacity than it has, each forecaster is played at
several costs; the table reads off the curve from replica-hours to attainment what 99 % and 95 %
cost. "as told": what it does where the capacity is told right.

The first ten minutes count nowhere, nor does the first day of several. --quick: one trace and
one cold start.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from autoscaler import forecast
from autoscaler.forecast_params import ForecastParams
from autoscaler.forecaster import Coefficients, Forecaster
from autoscaler.headroom import SHARE
from autoscaler.headroom_params import HeadroomParams
from autoscaler.history import History
from autoscaler.params import ControllerParams, PoolParams, ScalingParams, TierParams
from autoscaler.virtual import Sample, Scenario, run
from bench.forecast_traffic import NAMES, Traffic, traffics

# What a replica delivers over what the controller is told.
DELIVERED = (2.0, 1.4, 1.0, 0.8, 0.65, 0.5)
BUSIEST = 20.0
WAIT_S = 0.5
HOLDS_S = 8.0  # residence of a token in a full replica
# Well below it, or the model holds more in flight than came, and no forecast counts.
STEP_S = 0.5
ORACLE = "oracle"

Load = Callable[[float], float]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run: share of tokens within the SLO, replicas times hours, changes of target an hour."""

    attainment: float
    replica_hours: float
    changes_per_hour: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """A forecaster on one traffic: with the capacity told right, and hours at equal attainment."""

    traffic: str
    cold_start_s: float
    method: str
    as_told: Outcome
    hours_at_99: float | None
    hours_at_95: float | None


def knowing(load: Load, *, told: float) -> Forecaster:
    """The forecaster that is told: the mean of ten seconds at the horizon.

    `told`: tokens/s that a replica is said to carry; forecasts are of replicas kept busy.
    """

    def predict(history: History, horizon_s: float, coefficients: Coefficients) -> float:  # noqa: ARG001
        return sum(load(history.newest_s + horizon_s + i) for i in range(10)) / 10.0 / told

    return Forecaster(predict=predict)


def play(traffic: Traffic, *, method: str, cold_start_s: float, delivered: float) -> Outcome:
    capacity = traffic.busiest / BUSIEST
    told = capacity / delivered
    tick_s = traffic.tick_s
    never = TierParams(enter=(1e9,) * 4, leave=(1e8,) * 4, wait_limit_s=1e9)
    params = ControllerParams(
        pools=(
            PoolParams(
                pool="main",
                minimum=1,
                maximum=60,
                capacity_tokens_per_s=told,
                capacity_in_flight_tokens=told * HOLDS_S,
                cold_start_s=cold_start_s,
            ),
        ),
        scaling=ScalingParams(down_delay_s=60.0),
        headroom=HeadroomParams(method=SHARE),  # the same slack for every forecaster
        tiers=never,
        forecast=ForecastParams(
            method=method,
            refit_s=300.0 if tick_s < 10.0 else 1800.0,
            season_s=traffic.season_s,
        ),
        tick_s=tick_s,
        stale_after_s=max(10.0, 3 * tick_s),
    )
    scenario = Scenario(
        duration_s=traffic.duration_s,
        arrival_tokens_per_s=traffic.at,
        dt_s=STEP_S,
        delivered=delivered,
    )
    skipped = round(max(600.0, traffic.season_s) / tick_s)
    samples = run(params, scenario).samples[skipped:]
    return outcome(samples, capacity=capacity, tick_s=tick_s)


def outcome(samples: Sequence[Sample], *, capacity: float, tick_s: float) -> Outcome:
    offered = sum(s.offered_tokens_per_s for s in samples)
    good = sum(
        s.offered_tokens_per_s
        for s in samples
        if s.queued_tokens["main"] <= WAIT_S * s.ready["main"] * capacity
    )
    targets = [s.target["main"] for s in samples]
    hours = len(samples) * tick_s / 3600.0
    return Outcome(
        attainment=good / offered,
        replica_hours=sum(targets) * tick_s / 3600.0,
        changes_per_hour=sum(a != b for a, b in pairwise(targets)) / hours,
    )


def hours_at(attainment: float, outcomes: Sequence[Outcome]) -> float | None:
    """Replica-hours at which the curve through the runs crosses an attainment; None: nowhere."""
    curve = sorted(outcomes, key=lambda item: item.replica_hours)
    for less, more in pairwise(curve):
        if less.attainment < attainment <= more.attainment:
            share = (attainment - less.attainment) / (more.attainment - less.attainment)
            return less.replica_hours + share * (more.replica_hours - less.replica_hours)
    return curve[0].replica_hours if curve[0].attainment >= attainment else None


def told_or_not(traffic: Traffic, method: str, *, cold_start_s: float, delivered: float) -> Outcome:
    """A run; the oracle is a forecaster only in its own, or `auto` would choose it."""
    if method != ORACLE:
        return play(traffic, method=method, cold_start_s=cold_start_s, delivered=delivered)
    table = forecast.FORECASTERS
    oracle = knowing(traffic.at, told=traffic.busiest / BUSIEST / delivered)
    forecast.FORECASTERS = MappingProxyType({**table, ORACLE: oracle})
    try:
        return play(traffic, method=method, cold_start_s=cold_start_s, delivered=delivered)
    finally:
        forecast.FORECASTERS = table


def compare(traffic: Traffic, cold_start_s: float, methods: Sequence[str]) -> Iterator[Row]:
    for method in methods:
        outcomes = {
            share: told_or_not(traffic, method, cold_start_s=cold_start_s, delivered=share)
            for share in DELIVERED
        }
        yield Row(
            traffic=traffic.name,
            cold_start_s=cold_start_s,
            method=method,
            as_told=outcomes[1.0],
            hours_at_99=hours_at(0.99, list(outcomes.values())),
            hours_at_95=hours_at(0.95, list(outcomes.values())),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one trace, one cold start")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--trace", nargs="*", choices=NAMES, help="default: all")
    parser.add_argument("--cold-start", nargs="*", type=float, default=[60.0, 180.0])
    parser.add_argument("--days", type=float, default=2.0, help="of ServeGen's fourteen")
    everyone = (*forecast.methods(), ORACLE)
    parser.add_argument("--method", nargs="*", choices=everyone, default=everyone)
    arguments = parser.parse_args()
    names = arguments.trace or (("azure conversation",) if arguments.quick else NAMES)
    starts = arguments.cold_start[:1] if arguments.quick else arguments.cold_start

    rows: list[Row] = []
    print(
        f"{'traffic':20} {'start':>5} {'by':13} {'as told':>8} {'hours':>7} {'changes/h':>9}"
        f" {'h at 99 %':>10} {'h at 95 %':>10}"
    )
    for traffic in traffics(names, arguments.days):
        for start_s in starts:
            for row in compare(traffic, start_s, arguments.method):
                rows.append(row)
                told = row.as_told
                print(
                    f"{row.traffic:20} {start_s:4.0f}s {row.method:13} {told.attainment:8.2%}"
                    f" {told.replica_hours:7.1f} {told.changes_per_hour:9.1f}"
                    f" {_text(row.hours_at_99):>10} {_text(row.hours_at_95):>10}",
                    flush=True,
                )
    if arguments.json:
        figures = [asdict(row) for row in rows]
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _text(hours: float | None) -> str:
    return "-" if hours is None or math.isnan(hours) else f"{hours:.1f}"


if __name__ == "__main__":
    main()
