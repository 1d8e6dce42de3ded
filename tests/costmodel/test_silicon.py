from __future__ import annotations

import numpy as np
import pytest

from cluster.calibration.fit import distinct
from cluster.calibration.models import models_of
from cluster.calibration.predict import predict, with_builds
from cluster.calibration.runs import read_runs
from cluster.costmodel.calibration_file import default_coefficients, operator_coefficients
from tests.shared_data import shared_data

DATA = shared_data()
pytestmark = pytest.mark.skipif(
    DATA is None, reason="the measured serving runs are not beside the repository"
)


def median_errors(coefficients):
    assert DATA is not None
    runs = distinct(read_runs(DATA / "silicon" / "runs.csv"))
    found = predict(runs, models_of(DATA / "models"), coefficients=with_builds(coefficients, runs))
    measured = [run.ttft_s for run in runs], [run.tpot_s for run in runs]
    return [
        float(np.median(np.abs(ours / np.array(theirs) - 1.0)))
        for ours, theirs in zip(found, measured, strict=True)
    ]


def test_operator_tables_alone_predict_the_serving_runs_within_a_fifth():
    ttft, tpot = median_errors(operator_coefficients())
    assert tpot < 0.2
    assert ttft < 0.4


def test_the_shipped_calibration_describes_the_runs_it_was_fitted_to():
    ttft, tpot = median_errors(default_coefficients())
    assert tpot < 0.06
    assert ttft < 0.16
