"""How many controller steps per second? `python bench/controller.py [--quick] [--json FILE]`.

Steps over the snapshots of a virtual day with a surge, one core, state carried along; then what a
step takes by forecaster, on a load with noise at a tick of 1 s, half an hour of history behind it:
the median step, and the longest, which has a fit in it. Processor time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from autoscaler.controller import ControllerState, step
from autoscaler.decision_log import Tick
from autoscaler.forecast import methods, prepare
from autoscaler.forecast_params import ForecastParams
from autoscaler.params import ControllerParams, PoolParams
from autoscaler.virtual import Scenario, run


def step_times(method: str, params: ControllerParams, *, steps: int) -> tuple[float, float]:
    """Seconds of the median and of the longest step, once there is half an hour of history."""
    prepare(method)
    params = replace(params, forecast=ForecastParams(method=method), tick_s=1.0)
    noise = np.random.default_rng(0).normal(1.0, 0.1, size=steps + 1)
    scenario = Scenario(
        duration_s=float(steps), arrival_tokens_per_s=lambda t: 3000.0 * noise[int(t)], dt_s=0.5
    )
    state, times = ControllerState(), []
    for record in run(replace(params, forecast=ForecastParams()), scenario).records:
        if isinstance(record, Tick):
            start = time.process_time()
            state = step(state, record.snapshot, params).state
            times.append(time.process_time() - start)
    settled = sorted(times[1800:])
    return settled[len(settled) // 2], settled[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()

    pools = tuple(
        PoolParams(
            pool=name,
            minimum=minimum,
            maximum=8,
            capacity_tokens_per_s=1000.0,
            capacity_in_flight_tokens=8000.0,
        )
        for name, minimum in (("main", 1), ("light", 0))
    )
    params = ControllerParams(pools=pools)
    duration_s = 2000.0 if arguments.quick else 20_000.0
    start = time.perf_counter()
    result = run(
        params,
        Scenario(
            duration_s=duration_s,
            arrival_tokens_per_s=lambda t: 12_000.0 if 300.0 <= t < 900.0 else 900.0,
        ),
    )
    virtual_s = time.perf_counter() - start

    snapshots = [record.snapshot for record in result.records if isinstance(record, Tick)]
    state = ControllerState()
    start = time.perf_counter()
    for snapshot in snapshots:
        state = step(state, snapshot, params).state
    step_s = time.perf_counter() - start

    figures = {
        "steps": len(snapshots),
        "steps_per_s": len(snapshots) / step_s,
        "us_per_step": 1e6 * step_s / len(snapshots),
        "virtual_seconds_per_second": duration_s / virtual_s,
    }
    steps = 2000 if arguments.quick else 3600
    for method in methods():
        median_s, longest_s = step_times(method, params, steps=steps)
        figures[f"{method}_us_per_step"] = 1e6 * median_s
        figures[f"{method}_longest_ms"] = 1e3 * longest_s
    for name, value in figures.items():
        print(f"{name:28} {value:,.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
