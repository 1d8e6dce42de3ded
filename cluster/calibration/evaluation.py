"""All figures about one set of predictions, and the rows a cost model gives no answer for.

Invariants: every run has either both times or a reason; a run without an answer never stops the
others from being answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cluster.calibration.columns import Columns, FloatArray, IntArray, Times, codes, members, times
from cluster.calibration.metrics import Error, Ranking, coverage, errors, ranking
from cluster.calibration.picks import Picks, slo_picks
from cluster.calibration.runs import Run, normalised
from cluster.errors import InputError, ShardwiseError
from cluster.model.model_spec import ModelSpec

Predict = Callable[[Sequence[Run]], tuple[FloatArray, FloatArray]]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How one set of predictions compares with what was measured. Fractions throughout."""

    rows: int
    coverage: float
    errors: Mapping[str, Mapping[str, Mapping[str, Error]]]
    ranking: Ranking
    picks: Picks


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Predicted times of runs, seconds, shape (n,), and by run id why there are none."""

    times: Times
    reasons: Mapping[str, str]


def evaluate(columns: Columns, predicted: Times) -> Evaluation:
    """All figures of `predicted`, in the order of the runs of `columns`."""
    return Evaluation(
        rows=int(predicted.ttft_s.size),
        coverage=coverage(predicted),
        errors=errors(columns, predicted),
        ranking=ranking(columns, predicted),
        picks=slo_picks(columns, predicted),
    )


def answers(
    runs: Sequence[Run],
    models: Callable[[str], ModelSpec],
    *,
    predict: Predict,
    as_written: bool = False,
) -> Answers:
    """What `predict` says about each run, and why it says nothing about the others.

    `predict` takes runs and gives (TTFT, TPOT) in seconds, NaN where it has no answer. Where it
    raises, the groups of runs that cannot be predicted are told apart from those that can. Raises
    InputError where no run's model is to be had.
    """
    known: dict[str, ModelSpec] = {}
    unknown: dict[str, ShardwiseError] = {}
    for config in dict.fromkeys(run.config for run in runs):
        try:
            known[config] = models(config)
        except ShardwiseError as error:
            unknown[config] = error
    if not known and unknown:
        first = next(iter(unknown.values()))
        others = f" The same holds for {len(unknown) - 1} more." if len(unknown) > 1 else ""
        raise InputError(f"none of the runs' models is to be had: {first}{others}")
    ttft_s = np.full(len(runs), np.nan)
    tpot_s = np.full(len(runs), np.nan)
    reasons = {run.id: str(unknown[run.config]) for run in runs if run.config in unknown}
    rows = np.array([n for n, run in enumerate(runs) if run.config in known], dtype=np.int64)
    for part, found in _predictions(runs, rows, predict=predict):
        if isinstance(found, ShardwiseError):
            reasons |= {runs[row].id: str(found) for row in part}
        else:
            ttft_s[part], tpot_s[part] = found
    predicted = times(ttft_s, tpot_s)
    for row in np.flatnonzero(~predicted.known):
        run = runs[row]
        if run.id not in reasons:
            reasons[run.id] = _reason(run, known[run.config], as_written=as_written)
    # Half an answer is none: nothing per GPU follows from it.
    kept = predicted.known
    return Answers(
        times=Times(
            ttft_s=np.where(kept, predicted.ttft_s, np.nan),
            tpot_s=np.where(kept, predicted.tpot_s, np.nan),
        ),
        reasons=reasons,
    )


def _predictions(
    runs: Sequence[Run], rows: IntArray, *, predict: Predict
) -> list[tuple[IntArray, tuple[FloatArray, FloatArray] | ShardwiseError]]:
    """All rows at once; where that raises, one model, system and set of formats at a time."""
    try:
        return [(rows, predict([runs[row] for row in rows]))]
    except ShardwiseError:
        pass
    found: list[tuple[IntArray, tuple[FloatArray, FloatArray] | ShardwiseError]] = []
    keys = [
        (run.config, run.system, run.backend, run.precision, run.gemm_quant, run.moe_quant)
        for run in (runs[row] for row in rows)
    ]
    for part in members(codes(keys)):
        try:
            found.append((rows[part], predict([runs[row] for row in rows[part]])))
        except ShardwiseError as error:
            found.append((rows[part], error))
    return found


def _reason(run: Run, model: ModelSpec, *, as_written: bool) -> str:
    read = run if as_written else normalised(run)
    attention, experts = read.tp * read.attention_dp, read.moe_tp * read.moe_ep
    if model.experts and attention != experts:
        return (
            f"no expert grid: tp x attention_dp = {attention} but moe_tp x moe_ep = {experts}; "
            "both must count the GPUs of a stage"
        )
    return f"the cost model has no answer for this layout on {run.system}"
