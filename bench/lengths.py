"""Which length predictor is right about the traces? A back-test in order of time.

    python -m bench.lengths [--quick] [--json FILE] [--trace FILE ...]

Every request is predicted when it comes and learned from when its answer is done, at 50 ms a token.
The traces tell no output limits, so the formula stands there in several forms, each said:

- no limit: callers set none, and the plan's usual output is the trace's mean (the plan was right);
- limit k x: every caller sets the same limit, k times the trace's mean.

What a prediction is for is the load, (prompt + output / 2) * 1.2, of which sums are taken: "load"
is the mean absolute error of a request's over the mean load, "sum" the bias of the whole sum,
"minutes" the mean absolute bias of the sums of a minute. Spearman's correlation is that of
predicted and actual output tokens. The made-up requests have sources, limits and openings, and a
shift in the middle; without the public traces (../shared/data) they are all there is, and traces of
your own. --quick: the first 4,000 requests of each.
"""

from __future__ import annotations

import argparse
import heapq
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from bench.length_rivals import RIVALS, ROOM, Constant, Known, made_up
from cluster.lengths.features import LengthPredictor
from cluster.routing import predicted_tokens
from cluster.sim.front import asked_of
from cluster.traces.files import open_trace
from cluster.traces.options import WindowOptions

TRACES = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "traces"
PUBLIC = (
    "AzureLLMInferenceTrace_code_2023.csv",
    "AzureLLMInferenceTrace_conv_2023.csv",
    "mooncake_conversation_trace.jsonl",
    "servegen_language_m-large_10min.csv",
    "servegen_reason_deepseek-r1_10min.csv",
)
# Of millions of ServeGen's requests so many as the weeks' drift shows in.
THINNED = {
    "servegen_language_m-large_10min.csv": 1e-4,
    "servegen_reason_deepseek-r1_10min.csv": 1e-2,
}
Floats = NDArray[np.float64]
TOKEN_S = 0.05
MINUTE_S = 60.0
QUICK = 4_000


@dataclass(frozen=True, kw_only=True)
class Score:
    """One predictor on one trace. `mae`: output tokens; the others as fractions, see above."""

    trace: str
    predictor: str
    mae: float
    load_error: float
    sum_bias: float
    minute_bias: float
    spearman: float
    us: float


def backtest(predictor: LengthPredictor, known: Sequence[Known]) -> tuple[Floats, float]:
    """Predictions in order, and microseconds for predicting and learning one."""
    order = count()
    running: list[tuple[float, int, Known]] = []
    found = []
    begin = time.perf_counter()
    for one in known:
        while running and running[0][0] <= one.arrival_s:
            done = heapq.heappop(running)[2]
            predictor.learn(done.asked, done.output_tokens)
        found.append(predictor.predict(one.asked))
        end_s = one.arrival_s + TOKEN_S * one.output_tokens
        heapq.heappush(running, (end_s, next(order), one))
    return np.array(found), (time.perf_counter() - begin) / len(known) * 1e6


def scored(trace: str, name: str, predictor: LengthPredictor, known: Sequence[Known]) -> Score:
    """How right a predictor is."""
    guess, us = backtest(predictor, known)
    actual = np.array([float(one.output_tokens) for one in known])
    wanted, gave = (
        np.array(
            [
                predicted_tokens(prompt_tokens=one.asked.prompt_tokens, output_tokens=float(tokens))
                for one, tokens in zip(known, output, strict=True)
            ]
        )
        for output in (actual, guess)
    )
    minutes = (np.array([one.arrival_s for one in known]) / MINUTE_S).astype(int)
    counted = np.bincount(minutes)
    sums = np.bincount(minutes, weights=wanted), np.bincount(minutes, weights=gave)
    some = counted >= 10
    return Score(
        trace=trace,
        predictor=name,
        mae=float(np.abs(guess - actual).mean()),
        load_error=float(np.abs(gave - wanted).mean() / wanted.mean()),
        sum_bias=float(gave.sum() / wanted.sum() - 1.0),
        minute_bias=float(np.abs(sums[1][some] / sums[0][some] - 1.0).mean())
        if some.any()
        else 0.0,
        spearman=_spearman(guess, actual),
        us=us,
    )


def _spearman(one: Floats, other: Floats) -> float:
    if np.ptp(one) == 0.0:
        return 0.0
    return float(np.corrcoef(rankdata(one), rankdata(other))[0, 1])


def compared(trace: str, known: Sequence[Known]) -> list[Score]:
    """All predictors on one trace."""
    mean = float(np.mean([one.output_tokens for one in known]))
    limits = [one.asked.limit for one in known]
    scores = []
    if any(limit is not None for limit in limits):
        scores.append(scored(trace, "formula, their limits", RIVALS["formula"](mean), known))
    else:
        scores.append(scored(trace, "formula, no limit", Constant(mean), known))
        for times in (2, 4, 8):
            scores.append(scored(trace, f"formula, limit {times} x", Constant(times * mean), known))
    # None of the learners is told the trace's mean; 256 tokens is where each begins.
    for name, make in RIVALS.items():
        if name != "formula":
            scores.append(scored(trace, name, make(256.0), known))
    print(f"\n{trace}: {len(known):,} requests, {mean:.0f} output tokens on average")
    print(f"{'':28}{'MAE':>8}{'load':>9}{'sum':>9}{'minutes':>9}{'Spearman':>10}{'us':>7}")
    for score in scores:
        print(
            f"  {score.predictor:26}{score.mae:8.1f}{score.load_error:9.1%}{score.sum_bias:+9.1%}"
            f"{score.minute_bias:9.1%}{score.spearman:10.2f}{score.us:7.1f}"
        )
    return scores


def read(path: Path, *, most: int | None) -> list[Known]:
    """A trace's requests as a gateway would know them."""
    windows = WindowOptions(rate_factor=THINNED.get(path.name, 1.0))
    return [
        Known(
            arrival_s=request.arrival_s,
            asked=asked_of(request, limit=None, room=ROOM),
            output_tokens=request.output_tokens,
        )
        for request in islice(open_trace(path, windows=windows), most)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} requests of each")
    parser.add_argument("--trace", type=Path, nargs="*", help="traces of your own instead")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    most = QUICK if args.quick else None
    paths = args.trace or [TRACES / name for name in PUBLIC]
    scores = []
    for path in paths:
        if path.is_file():
            scores += compared(path.name, read(path, most=most))
        else:
            print(f"{path.name} is not at hand ({path.parent}): left out")
    scores += compared("made up: eight applications", made_up(most or 20_000))
    if args.json:
        figures = [asdict(score) for score in scores]
        args.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
