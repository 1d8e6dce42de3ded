from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from cluster.calibration.columns import columns_of, times
from cluster.calibration.picks import slo_picks
from tests.calibration.samples import run
from tests.calibration.test_metrics import measured, measured_runs

# One pool: TPOT rises with the requests in flight, and so does throughput. TTFT hardly matters.
POOL = [
    run(id=str(concurrency), concurrency=concurrency, ttft_s=1e-6, tpot_s=tpot_ms / 1e3)
    for concurrency, tpot_ms in ((4, 5.0), (16, 8.0), (64, 20.0))
]
CAP_S = 0.008


def pick(*tpot_ms: float | None):
    guesses = [None if value is None else value / 1e3 for value in tpot_ms]
    ttfts = [None if value is None else 1e-6 for value in tpot_ms]
    return slo_picks(columns_of(POOL), times(ttfts, guesses))


@given(measured_runs())
def test_a_perfect_prediction_answers_all_and_loses_nothing(runs):
    found = slo_picks(columns_of(runs), measured(runs))
    assert (found.unanswered, found.breaking) == (0, 0)
    assert found.kept == found.pools
    if found.pools:
        assert found.regret_mean == found.regret_median == 0.0


def test_the_best_within_the_cap_is_found():
    found = pick(5.5, 7.9, 21.0)
    assert (found.pools, found.kept, found.regret_mean) == (1, 1, 0.0)


def test_a_pessimist_loses_throughput():
    found = pick(5.5, 8.1, 21.0)  # believes that only the smallest keeps the cap
    assert (found.unanswered, found.breaking, found.kept) == (0, 0, 1)
    assert found.regret_mean == pytest.approx(1.0 - (4 / 5.0) / (16 / 8.0), rel=1e-3)


def test_an_optimist_breaks_the_cap():
    found = pick(5.0, 7.0, 7.9)
    assert (found.breaking, found.kept) == (1, 0)
    assert np.isnan(found.regret_mean)


@pytest.mark.parametrize("guess", [(9.0, 10.0, 30.0), (None, None, None), (None, 9.0, None)])
def test_nothing_within_the_cap_is_no_answer(guess):
    found = pick(*guess)
    assert (found.pools, found.unanswered, found.kept) == (1, 1, 0)


def test_half_an_answer_is_not_picked():
    found = slo_picks(columns_of(POOL), times([1e-6, None, 1e-6], [0.0055, 0.0079, 0.021]))
    assert found.regret_mean > 0.0


def test_a_pool_needs_two_measured_runs_and_spans_concurrencies_only():
    lonely = [
        run(id="1"),
        run(id="2", isl=7),
        run(id="3", backend="sglang"),
        run(id="4", tpot_s=None),
    ]
    assert slo_picks(columns_of(lonely), measured(lonely)).pools == 0
    assert slo_picks(columns_of([*lonely, run(id="5")]), times([0.1] * 5, [0.1] * 5)).pools == 1


def test_runs_predicted_alike_are_taken_in_the_order_of_the_file():
    repeats = [run(id="1", tpot_s=0.010), run(id="2", tpot_s=0.012), run(id="3", tpot_s=0.014)]
    same = times([0.12] * 3, [0.011] * 3)
    assert slo_picks(columns_of(repeats), same).breaking == 0
    assert slo_picks(columns_of(repeats[::-1]), same).breaking == 1
