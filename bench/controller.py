"""How many controller steps per second? `python bench/controller.py [--quick] [--json FILE]`.

Steps over the snapshots of a virtual day with a surge, one core, state carried along.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from autoscaler.controller import ControllerState, step
from autoscaler.decision_log import Tick
from autoscaler.params import ControllerParams, PoolParams
from autoscaler.virtual import Scenario, run


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
    for name, value in figures.items():
        print(f"{name:28} {value:,.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
