"""Would one who trusts the predictions pick a good run within a latency bound?

A pool holds the measured runs of one workload on one system by one backend, whatever the layout
and concurrency. Its cap is the median measured TPOT; the pick is the run with the highest
predicted tokens/s/GPU among those predicted to keep the cap. The best is the run with the highest
measured tokens/s/GPU among those that measured within the cap, and

    regret = 1 - measured throughput of the pick / measured throughput of the best.

Invariants: a perfect prediction answers every pool, breaks no cap and has regret 0. Of runs
predicted alike (repeats of one configuration) the first of the file is the pick.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster.calibration.columns import Columns, Times, members


@dataclass(frozen=True, kw_only=True)
class Picks:
    """Outcome over `pools`; regrets are fractions over the `kept` ones, NaN over none.

    `unanswered` pools had nothing predicted within the cap; in `breaking` ones the pick measured
    above it; `kept` are the rest.
    """

    pools: int
    unanswered: int
    breaking: int
    kept: int
    regret_mean: float
    regret_median: float


def slo_picks(columns: Columns, predicted: Times) -> Picks:
    """Picks within the median measured TPOT of each pool with at least two measured runs."""
    throughput = columns.throughput(columns.measured)
    ours = columns.throughput(predicted)
    pools = unanswered = breaking = 0
    regrets: list[float] = []
    for members_of_pool in members(columns.pool):
        rows = members_of_pool[columns.measured.known[members_of_pool]]
        if rows.size < 2:
            continue
        pools += 1
        tpot_s = columns.measured.tpot_s[rows]
        cap_s = float(np.median(tpot_s))
        # A prediction that is not known compares false: it is no candidate.
        candidates = np.flatnonzero((predicted.tpot_s[rows] <= cap_s) & np.isfinite(ours[rows]))
        if not candidates.size:
            unanswered += 1
            continue
        pick = candidates[np.argmax(ours[rows][candidates])]
        if tpot_s[pick] > cap_s:
            breaking += 1
            continue
        best = throughput[rows][tpot_s <= cap_s].max()
        regrets.append(float(1.0 - throughput[rows][pick] / best))
    return Picks(
        pools=pools,
        unanswered=unanswered,
        breaking=breaking,
        kept=len(regrets),
        regret_mean=float(np.mean(regrets)) if regrets else float("nan"),
        regret_median=float(np.median(regrets)) if regrets else float("nan"),
    )
