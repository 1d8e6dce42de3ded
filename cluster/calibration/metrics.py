"""How far are predicted times from measured ones, and do they rank layouts rightly?

Errors are relative, predicted / measured - 1, as fractions. Ranking is judged inside a condition
(one workload on one system by one backend at one concurrency) that has at least two layouts: the
error of the ratio of two layouts' throughput, which a factor common to all predictions leaves
alone; Kendall's tau-b; and what is lost by running the layout predicted best.

A layout that was run several times in one condition counts once, with the mean of its runs. Where
those runs say different numbers of GPUs (double-counted degrees, see cluster.calibration.runs),
the ones with more are copies and are left out.

Invariants: a perfect prediction has error 0, tau 1 and regret 0; nothing depends on the order of
rows; a figure over nothing is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import fsum

import numpy as np

from cluster.calibration.columns import Columns, FloatArray, IntArray, Times, members

QUANTITIES = ("ttft", "tpot", "throughput")
_SAME = 1e-12  # shares of throughput closer than this are equal


@dataclass(frozen=True, kw_only=True)
class Error:
    """Relative error of one quantity over `rows` runs: fractions, NaN over none.

    `median` and `mean` are of the absolute error; `bias` is the median of the signed one.
    """

    rows: int
    median: float
    mean: float
    bias: float


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """How well layouts are ranked, over the conditions with at least two measured layouts.

    Ratio errors are over all pairs of answered layouts, the faster by measurement over the
    slower; tau is the mean over the `ranked`
    conditions (those with two answered layouts whose measured throughput differs). `regret` is
    the share of the best measured throughput lost by the layout predicted best, a mean over the
    conditions with an answer, `unanswered` of which have none; `hit_rate` is how often nothing is
    lost, `chance` how often a random pick would hit.
    """

    conditions: int
    unanswered: int
    pairs: int
    ratio_median: float
    ratio_p90: float
    ranked: int
    tau: float
    regret: float
    hit_rate: float
    chance: float


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How far repeated runs of one configuration differ: no prediction can be nearer to both.

    Of `repeated` configurations, `copies` repeat the very same values and say nothing. Spreads
    are max / min - 1: their median and 90th percentile over the rest.
    """

    repeated: int
    copies: int
    ttft_median: float
    ttft_p90: float
    tpot_median: float
    tpot_p90: float


def coverage(predicted: Times) -> float:
    """Share of the runs with both times predicted."""
    return _mean(predicted.known.astype(np.float64))


def error(predicted: FloatArray, measured: FloatArray) -> Error:
    """Error of one quantity over the rows where both are known. Shapes (n,)."""
    both = np.isfinite(predicted) & np.isfinite(measured)
    signed = predicted[both] / measured[both] - 1.0
    return Error(
        rows=int(both.sum()),
        median=_median(np.abs(signed)),
        mean=_mean(np.abs(signed)),
        bias=_median(signed),
    )


def errors(columns: Columns, predicted: Times) -> dict[str, dict[str, dict[str, Error]]]:
    """Error by grouping, group and quantity, e.g. `["system"]["h100_sxm"]["tpot"]`."""
    measured = columns.measured
    quantities = {
        "ttft": (predicted.ttft_s, measured.ttft_s),
        "tpot": (predicted.tpot_s, measured.tpot_s),
        "throughput": (columns.throughput(predicted), columns.throughput(measured)),
    }
    found: dict[str, dict[str, dict[str, Error]]] = {}
    for grouping, labels in columns.labels.items():
        names = np.array(labels)
        found[grouping] = {
            str(label): {
                name: error(ours[names == label], truth[names == label])
                for name, (ours, truth) in quantities.items()
            }
            for label in np.unique(names)
        }
    return found


def ranking(columns: Columns, predicted: Times) -> Ranking:
    """How well `predicted` ranks the layouts of each condition."""
    measured = columns.throughput(columns.measured)
    ours = columns.throughput(predicted)
    ratios: list[float] = []
    taus: list[float] = []
    regrets: list[float] = []
    hits: list[float] = []
    chances: list[float] = []
    conditions = 0
    for rows in members(columns.condition):
        truth, guess = _layouts(columns, rows, measured=measured, predicted=ours)
        if truth.size < 2:
            continue
        conditions += 1
        answered = np.isfinite(guess)
        if not answered.any():
            continue
        lost = 1.0 - truth / truth.max()
        # Layouts predicted equally good are picked equally often, whatever the order of rows.
        picked = lost[answered][guess[answered] >= guess[answered].max() * (1.0 - _SAME)]
        regrets.append(float(picked.mean()))
        hits.append(float((picked <= _SAME).mean()))
        chances.append(float((lost <= _SAME).mean()))
        truth, guess = truth[answered], guess[answered]
        for slow, fast in combinations(np.lexsort((guess, truth)), 2):
            ratios.append(abs((guess[fast] / guess[slow]) / (truth[fast] / truth[slow]) - 1.0))
        tau = kendall_tau(guess, truth)
        if np.isfinite(tau):
            taus.append(tau)
    spread = np.array(ratios)
    return Ranking(
        conditions=conditions,
        unanswered=conditions - len(regrets),
        pairs=len(ratios),
        ratio_median=_median(spread),
        ratio_p90=_p90(spread),
        ranked=len(taus),
        tau=_mean(np.array(taus)),
        regret=_mean(np.array(regrets)),
        hit_rate=_mean(np.array(hits)),
        chance=_mean(np.array(chances)),
    )


def kendall_tau(predicted: FloatArray, measured: FloatArray) -> float:
    """Kendall's tau-b of two orders, shapes (n,): 1 the same, -1 reversed.

    0 where everything is predicted equal (no order was given), NaN where nothing measured
    differs (there is no order to find). Otherwise equal to scipy.stats.kendalltau.
    """
    upper = np.triu_indices(predicted.size, k=1)
    a = np.sign(predicted[:, None] - predicted[None, :])[upper]
    b = np.sign(measured[:, None] - measured[None, :])[upper]
    if not b.any():
        return float("nan")
    if not a.any():
        return 0.0
    return float((a @ b) / np.sqrt((a @ a) * (b @ b)))


def noise(columns: Columns) -> Noise:
    """The spread between repeated runs of exactly one configuration."""
    known = columns.measured.known
    repeated = copies = 0
    ttft: list[float] = []
    tpot: list[float] = []
    for rows in members(columns.identity):
        kept = rows[known[rows]]
        if kept.size < 2:
            continue
        repeated += 1
        a, b = columns.measured.ttft_s[kept], columns.measured.tpot_s[kept]
        if np.ptp(a) == 0.0 and np.ptp(b) == 0.0:
            copies += 1
            continue
        ttft.append(float(a.max() / a.min() - 1.0))
        tpot.append(float(b.max() / b.min() - 1.0))
    return Noise(
        repeated=repeated,
        copies=copies,
        ttft_median=_median(np.array(ttft)),
        ttft_p90=_p90(np.array(ttft)),
        tpot_median=_median(np.array(tpot)),
        tpot_p90=_p90(np.array(tpot)),
    )


def _layouts(
    columns: Columns, rows: IntArray, *, measured: FloatArray, predicted: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean measured and predicted throughput of each measured layout of one condition.

    Both means are over the same runs; the prediction is NaN where none of them has an answer.
    """
    kept = rows[np.isfinite(measured[rows])]
    truth, guess = [], []
    for part in members(columns.layout[kept]):
        runs = kept[part]
        runs = runs[columns.devices[runs] == columns.devices[runs].min()]
        answered = runs[np.isfinite(predicted[runs])]
        counted = answered if answered.size else runs
        # Sums rounded once: ties between layouts must not depend on the order of rows.
        truth.append(fsum(measured[counted]) / counted.size)
        guess.append(fsum(predicted[counted]) / counted.size)
    return np.array(truth, dtype=np.float64), np.array(guess, dtype=np.float64)


def _median(values: FloatArray) -> float:
    return float(np.median(values)) if values.size else float("nan")


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if values.size else float("nan")


def _p90(values: FloatArray) -> float:
    return float(np.quantile(values, 0.9)) if values.size else float("nan")
