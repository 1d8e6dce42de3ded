from __future__ import annotations

import csv

import numpy as np
import pytest

from bench.silicon import Run, predict, ranking
from tests.shared_data import shared_data

DATA = shared_data()


@pytest.mark.skipif(DATA is None, reason="the measured serving runs are not beside the repository")
def test_measured_serving_runs_are_predicted_within_a_fifth_at_the_median():
    assert DATA is not None
    with (DATA / "silicon" / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))[::7]
    found = predict(rows, DATA / "models")
    runs = [Run(row, {}, *found[row["id"]]) for row in rows]
    tpot = [abs(run.tpot_ms / float(run.row["tpot_ms"]) - 1) for run in runs]
    ttft = [abs(run.ttft_ms / float(run.row["ttft_ms"]) - 1) for run in runs]
    assert np.median(tpot) < 0.2
    assert np.median(ttft) < 0.5


def row(**changes: str) -> dict[str, str]:
    base = {
        "id": "x",
        "tp": "1",
        "pp": "1",
        "attention_dp": "1",
        "osl": "100",
        "concurrency": "8",
        "config": "c",
        "system": "h100_sxm",
        "backend": "vllm",
        "precision": "",
        "isl": "100",
        "ttft_ms": "10",
        "tpot_ms": "10",
    }
    return {**base, **changes}


def test_throughput_follows_little_s_law():
    run = Run(row(tp="2"), {}, 10.0, 10.0)
    assert run.throughput(10.0, 10.0) == pytest.approx(8 * 100 / 1.0 / 2)


def test_ranking_counts_a_hit_only_for_the_measured_best():
    fast = {"ttft_ms": "5", "tpot_ms": "5"}
    slow = {"ttft_ms": "20", "tpot_ms": "20"}
    right = [Run(row(**fast), fast, 5.0, 5.0), Run(row(**slow), slow, 20.0, 20.0)]
    assert ranking(right)["ours_best"] == 1.0
    wrong = [Run(row(**fast), fast, 20.0, 20.0), Run(row(**slow), slow, 5.0, 5.0)]
    assert ranking(wrong)["ours_best"] == 0.0
    assert ranking(wrong)["peer_best"] == 1.0
    assert ranking(wrong)["chance"] == 0.5
