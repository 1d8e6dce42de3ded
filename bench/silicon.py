"""How far is the cost model from measured serving runs it has not seen, beside aiconfigurator?

    python -m bench.silicon [--quick] [--json FILE] [--runs FILE] [--predictions FILE]
                            [--models DIR] [--unseen MODEL ...]

Fits afresh from operator tables on a part of the runs, predicts the rest, and prints both tools'
errors on the same held-out rows:

- conditions: three tenths of the condition groups (model, system, backend, precision, lengths,
  concurrency; by hash; DeepSeek-V3 and R1 are one model) are held out: models, systems and engines
  seen, conditions not;
- models: each model of --unseen is held out whole, with all its systems and engines.

--quick fits on every third run and holds one model out. A fit takes about two minutes on a core.
The shipped calibration is fitted on all runs; what it says of them is printed last, in sample.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from cluster.calibration.columns import Times, columns_of, times
from cluster.calibration.cross_validation import By, folds, one_model
from cluster.calibration.evaluation import Evaluation, evaluate
from cluster.calibration.fit import distinct, fit_runs
from cluster.calibration.metrics import noise
from cluster.calibration.models import models_of
from cluster.calibration.predict import predict, with_builds
from cluster.calibration.runs import Run, read_predictions, read_runs
from cluster.costmodel.calibration_file import default_coefficients, operator_coefficients
from cluster.costmodel.coefficients import Coefficients
from cluster.model.model_spec import ModelSpec

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
UNSEEN = ("MiniMaxAI--MiniMax-M2.5", "openai--gpt-oss-120b", "moonshotai--Kimi-K2.5")
Models = Callable[[str], ModelSpec]


def seconds(runs: Sequence[Run], models: Models, coefficients: Coefficients) -> Times:
    """Our predictions."""
    known = with_builds(coefficients, runs)
    ttft_s, tpot_s = predict(runs, models, coefficients=known)
    return times(ttft_s, tpot_s)


def peer_seconds(runs: Sequence[Run], path: Path) -> Times:
    """Aiconfigurator's predictions of the same rows, NaN where it has none."""
    answers = read_predictions(path)
    rows = [answers.get(run.id, (None, None)) for run in runs]
    return times([row[0] for row in rows], [row[1] for row in rows])


def show(name: str, runs: Sequence[Run], ours: Times, peer: Times) -> dict[str, object]:
    """Print and return the figures of both on `runs`."""
    columns = columns_of(runs)
    found = {"ours": evaluate(columns, ours), "aiconfigurator": evaluate(columns, peer)}
    print(f"\n{name}: {len(runs)} runs")
    for tool, result in found.items():
        print("  " + line(tool, result))
    mine, theirs = (found[tool].errors for tool in found)
    for grouping in ("system", "backend", "config"):
        for label, errors in mine.get(grouping, {}).items():
            other = theirs[grouping][label]
            print(
                f"    {label:36}{errors['tpot'].rows:>5}"
                + "".join(
                    f"  {q} {errors[q].median:5.1%} / {other[q].median:5.1%}"
                    for q in ("tpot", "ttft", "throughput")
                )
            )
    return {tool: asdict(result) for tool, result in found.items()}


def line(tool: str, result: Evaluation) -> str:
    """One tool's figures in a line."""
    whole = result.errors["overall"]["all"]
    ranking, picks = result.ranking, result.picks
    return (
        f"{tool:15} coverage {result.coverage:4.0%}  TPOT {whole['tpot'].median:5.1%} "
        f"(bias {whole['tpot'].bias:+5.1%})  TTFT {whole['ttft'].median:5.1%} "
        f"({whole['ttft'].bias:+5.1%})  tokens/s/GPU {whole['throughput'].median:5.1%}  "
        f"layout ratio {ranking.ratio_median:5.1%} (p90 {ranking.ratio_p90:5.1%})  "
        f"tau {ranking.tau:.2f}  SLO picks: {picks.unanswered} unanswered, "
        f"{picks.breaking} breaking of {picks.pools}, regret {picks.regret_mean:5.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a third of the runs, one model")
    parser.add_argument("--runs", type=Path, default=DATA / "silicon" / "runs.csv")
    parser.add_argument(
        "--predictions", type=Path, default=DATA / "silicon" / "aiconfigurator_predictions.csv"
    )
    parser.add_argument("--models", type=Path, default=DATA / "models")
    parser.add_argument("--unseen", nargs="*", default=list(UNSEEN), help="models held out whole")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    for path in (args.runs, args.predictions):
        if not path.is_file():
            parser.error(f"{path} is not a file; pass --runs and --predictions")
    runs = distinct(read_runs(args.runs))
    unseen = args.unseen
    if args.quick:
        runs, unseen = runs[::3], unseen[:1]
    models = models_of(args.models)
    start = operator_coefficients()
    figures: dict[str, object] = {"noise": asdict(noise(columns_of(read_runs(args.runs))))}
    alike = one_model({run.config: models(run.config) for run in runs})
    splits = folds(runs, By.CONDITIONS, alike=alike)
    splits += [
        fold
        for fold in folds(runs, By.MODELS, alike=alike)
        if any(name in fold.name for name in unseen)
    ]
    for fold in splits:
        begin = time.perf_counter()
        fitted = fit_runs([runs[row] for row in fold.train], models, start=start)
        print(
            f"\nfitted on {fitted.runs} runs in {time.perf_counter() - begin:.0f} s: "
            f"{len(fitted.moved)} coefficients, {fitted.effective:.0f} effective"
        )
        left = [runs[row] for row in fold.test]
        ours = seconds(left, models, fitted.coefficients)
        name = f"held out: {fold.name}"
        figures[name] = show(name, left, ours, peer_seconds(left, args.predictions))
    shipped = seconds(runs, models, default_coefficients())
    figures["shipped, in sample"] = show(
        "shipped calibration, in sample", runs, shipped, peer_seconds(runs, args.predictions)
    )
    tables = seconds(runs, models, start)
    print("\noperator tables alone, nothing fitted")
    print("  " + line("ours", evaluate(columns_of(runs), tables)))
    print(f"\nnoise between repeated runs: {figures['noise']}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2, default=float) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
