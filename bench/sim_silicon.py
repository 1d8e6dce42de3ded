"""Does the simulator, replaying measured closed-loop runs request by request, agree with them?

    python -m bench.sim_silicon [--quick] [--fit] [--json FILE] [--runs FILE] [--models DIR]

Each distinct run of the file is replayed by the trace simulator (`cluster.sim.measured_runs`), and
its mean TTFT and TPOT stand beside the measured ones and beside the service model's closed form,
which was fitted to the same runs. The simulator's own scheduler lags were fitted to every fourth
run; errors are printed on the other three and on that quarter. --fit prints the lags that fit the
quarter best. --quick replays every twelfth run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from cluster.calibration.fit import distinct
from cluster.calibration.models import models_of
from cluster.calibration.predict import predict, with_builds
from cluster.calibration.runs import Run, read_runs
from cluster.costmodel.calibration_file import default_coefficients
from cluster.costmodel.coefficients import Coefficients
from cluster.model.model_spec import ModelSpec
from cluster.sim.measured_runs import Replayed, replay_run

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
FITTED = 4  # every so manieth run is fitted to
_OUTLIER = 0.6  # of a logarithm: more than this counts as this
Floats = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="every twelfth run")
    parser.add_argument("--fit", action="store_true", help="fit the scheduler lags and print them")
    parser.add_argument("--runs", type=Path, default=DATA / "silicon" / "runs.csv")
    parser.add_argument("--models", type=Path, default=DATA / "models")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    if not args.runs.is_file():
        parser.error(f"{args.runs} is not a file; pass --runs")
    runs = distinct(read_runs(args.runs))
    models = models_of(args.models)
    coefficients = with_builds(default_coefficients(), runs)
    chosen = np.arange(len(runs))
    if args.fit:
        return print_fit(runs[::FITTED], models, coefficients)
    if args.quick:
        chosen = chosen[1::12]
    begin = time.perf_counter()
    taken = [runs[index] for index in chosen]
    replayed = [replay_run(run, models, coefficients=coefficients) for run in taken]
    seconds = time.perf_counter() - begin
    service = predict(taken, models, coefficients=coefficients)
    requests = sum(one.requests for one in replayed)
    print(f"{len(taken)} runs, {requests:,} requests replayed in {seconds:.0f} s")
    figures = compare(taken, chosen % FITTED == 0, replayed, service)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return None


def compare(
    runs: Sequence[Run],
    fitted: NDArray[np.bool_],
    replayed: Sequence[Replayed],
    service: tuple[Floats, Floats],
) -> dict[str, dict[str, float]]:
    """Print and return median errors by group."""
    groups: dict[str, NDArray[np.bool_]] = {
        "all": np.ones(len(runs), dtype=bool),
        "lags not fitted to": ~fitted,
        "lags fitted to": fitted,
        "attention dp > 1": np.array([run.attention_dp > 1 for run in runs]),
    }
    for backend in sorted({run.backend for run in runs}):
        groups[backend] = np.array([run.backend == backend for run in runs])
    measured = [np.array([run.ttft_s or np.nan for run in runs]), tpot_of(runs)]
    ours = [
        np.array([one.ttft_s for one in replayed]),
        np.array([one.tpot_s for one in replayed]),
    ]
    found: dict[str, dict[str, float]] = {}
    header = "median |error| (median error)        runs   TPOT: simulator, service"
    print(header + "      TTFT: simulator, service      simulator / service: TPOT, TTFT")
    for name, rows in groups.items():
        if not rows.any():
            continue
        line: dict[str, float] = {"runs": int(rows.sum())}
        for index, what in ((1, "tpot"), (0, "ttft")):
            truth = measured[index][rows]
            for tool, values in (("simulator", ours[index]), ("service", service[index])):
                error = values[rows] / truth - 1.0
                line[f"{what}_{tool}"] = float(np.nanmedian(np.abs(error)))
                line[f"{what}_{tool}_bias"] = float(np.nanmedian(error))
            line[f"{what}_apart"] = float(
                np.median(np.abs(ours[index][rows] / service[index][rows] - 1.0))
            )
        found[name] = line
        print(
            f"{name:34}{line['runs']:7}   "
            + "   ".join(
                f"{line[f'{what}_{tool}']:6.1%} ({line[f'{what}_{tool}_bias']:+6.1%})"
                for what in ("tpot", "ttft")
                for tool in ("simulator", "service")
            )
            + f"   {line['tpot_apart']:5.1%}, {line['ttft_apart']:5.1%}"
        )
    return found


def tpot_of(runs: Sequence[Run]) -> Floats:
    """Measured TPOT, seconds; NaN where there is none."""
    return np.array([run.tpot_s or np.nan for run in runs])


def print_fit(
    runs: Sequence[Run], models: Callable[[str], ModelSpec], coefficients: Coefficients
) -> None:
    """Print the lags that fit the measured TTFT of `runs` best."""
    for backend in sorted({run.backend for run in runs}):
        taken = [run for run in runs if run.backend == backend and run.ttft_s]
        plain = [replay_run(run, models, coefficients=coefficients, lagging=False) for run in taken]
        version = [
            coefficients.value(f"build.{backend}.{run.backend_version or 'unknown'}.request")
            for run in taken
        ]
        ranked = np.array([run.attention_dp > 1 for run in taken])
        truth = np.array([run.ttft_s for run in taken], dtype=np.float64)
        base = np.array([one.ttft_s for one in plain])
        step = np.array([one.step_s for one in plain]) * np.array(version)
        step = np.where(np.array([run.concurrency > 1 for run in taken]), step, 0.0)
        place = np.array([one.place_s for one in plain])

        def loss(lags: Floats, parts: tuple[Floats, ...]) -> float:
            base, step, ranked, place, truth = parts
            steps, ranks, places = np.abs(lags)
            ttft = base + (steps + ranks * ranked) * step + places * place
            return float(np.mean(np.minimum(np.abs(np.log(ttft / truth)), _OUTLIER)))

        parts = (base, step, ranked.astype(np.float64), place, truth)
        starts = ([1.0, 1.0, 0.1], [10.0, 10.0, 0.5])
        best = min(
            (minimize(loss, x, args=(parts,), method="Nelder-Mead") for x in starts),
            key=lambda r: r.fun,
        )
        steps, ranks, places = np.abs(best.x)
        print(
            f"lag.{backend}.steps: {steps:.2f}\nlag.{backend}.rank_steps: "
            f"{ranks if ranked.any() else 0.0:.2f}\nlag.{backend}.places: {places:.2f}"
        )


if __name__ == "__main__":
    main()
