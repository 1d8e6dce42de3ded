"""A fit finds the coefficients that made the runs, and leaves alone what they do not speak of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cluster.calibration.fit import FitResult, Stage, distinct, fit_runs
from cluster.calibration.predict import predict
from cluster.errors import InputError, UnknownNameError
from tests.calibration.samples import run
from tests.calibration.synthetic import BASE, BRIEF, FIND, ONCE, as_measured, grid, scaled, spoilt

MBU, STEP = "gemm.hopper.bf16.mbu", "engine.vllm.step_s"
TRUTH = scaled({MBU: 0.5, STEP: 2.0})


def fit(runs, *, stages=BRIEF, start=BASE) -> FitResult:
    return fit_runs(runs, FIND, start=start, stages=stages)


@pytest.fixture(scope="module")
def found() -> FitResult:
    return fit(as_measured(grid(), TRUTH))


def ratio(found: FitResult, name: str) -> float:
    return found.coefficients.value(name) / BASE.value(name)


def test_coefficients_that_made_the_runs_are_found(found):
    # Not exactly: priors of other coefficients take a small part of the difference.
    assert ratio(found, MBU) == pytest.approx(0.5, rel=0.12)
    assert ratio(found, STEP) == pytest.approx(2.0, rel=0.15)
    others = {
        name: after / before for name, before, after in found.moved if name not in (MBU, STEP)
    }
    assert max(abs(np.log(by)) for by in others.values()) < 0.15


def test_the_fitted_coefficients_predict_the_runs(found):
    runs = as_measured(grid(), TRUTH)
    ttft, tpot = predict(runs, FIND, coefficients=found.coefficients)
    assert np.median(np.abs(tpot / [each.tpot_s for each in runs] - 1.0)) < 0.01
    assert np.median(np.abs(ttft / [each.ttft_s for each in runs] - 1.0)) < 0.03
    assert found.runs == len(runs)


def test_what_the_runs_do_not_speak_of_stays(found):
    moved = {name for name, _, _ in found.moved}
    for name in BASE.names:
        if name not in moved:
            assert found.coefficients.value(name) == BASE.value(name), name
    families = {name.split(".")[1] for name in moved if name.startswith(("gemm", "attention"))}
    assert families == {"hopper"}
    assert not any(
        name.startswith(("experts", "latent", "linear", "kernels.moe")) for name in moved
    )
    assert not any("sglang" in name or "trtllm" in name for name in moved)


def test_fewer_coefficients_are_decided_than_are_fitted(found):
    assert 2.0 < found.effective < len(found.moved) / 2


def test_a_tenth_of_wrong_rows_changes_little(found):
    runs = spoilt(as_measured(grid(), TRUTH), share=0.1)
    robust = fit(runs)
    assert ratio(robust, MBU) == pytest.approx(ratio(found, MBU), rel=0.1)
    assert ratio(robust, STEP) == pytest.approx(ratio(found, STEP), rel=0.2)


def test_runs_that_agree_with_the_start_move_nothing():
    same = fit(as_measured(grid(tps=(1, 2))), stages=ONCE)
    assert all(after == pytest.approx(before, rel=1e-4) for _, before, after in same.moved)


def test_shares_never_exceed_one():
    runs = [
        replace(each, ttft_s=(each.ttft_s or 1.0) / 4, tpot_s=(each.tpot_s or 1.0) / 4)
        for each in as_measured(grid(tps=(1, 2)))
    ]
    fast = fit(runs, stages=(Stage(tpot=0.3, ttft=0.5, iterations=6),))
    shares = [value for name, _, value in fast.moved if name.endswith(("mbu", "mfu", "efficiency"))]
    assert len(shares) > 3
    assert max(shares) <= 1.0
    assert ratio(fast, MBU) > 1.1


def test_a_slow_engine_version_gets_factors_of_its_own():
    good = as_measured(grid(tps=(1, 2)))
    slow = [
        replace(each, backend_version="9.9", tpot_s=(each.tpot_s or 1.0) * 1.15) for each in good
    ]
    both = fit([*good, *slow])
    value = both.coefficients.value
    assert value("build.vllm.9.9.time") > value("build.vllm.1.0.time") * 1.08
    assert "build.vllm.9.9.time" not in BASE
    # The other version's predictions hardly suffer.
    _, tpot = predict(good, FIND, coefficients=both.coefficients)
    assert np.median(np.abs(tpot / [each.tpot_s for each in good] - 1.0)) < 0.04


def test_progress_is_told():
    lines: list[str] = []
    fit_runs(
        as_measured(grid(tps=(1, 2)), TRUTH), FIND, start=BASE, stages=ONCE, progress=lines.append
    )
    assert len(lines) == 1
    assert "iteration 1: median error TPOT" in lines[0]


def test_copies_and_unmeasured_runs_do_not_count():
    one = run(id="a")
    rows = [one, run(id="b"), run(id="c", model="other/name"), run(id="d", tpot_s=None)]
    assert distinct([*rows, run(id="e", ttft_s=None)]) == (one,)
    assert len(distinct([one, run(id="f", tpot_s=0.02), run(id="g", tp=1, moe_tp=1)])) == 3


def test_too_few_runs_are_refused():
    runs = as_measured(grid()[:19])
    with pytest.raises(InputError, match=r"19 distinct runs .* a fit needs 20\. Fix"):
        fit(runs)
    with pytest.raises(InputError, match="0 distinct runs"):
        fit([run(id=str(n), concurrency=n + 1, tpot_s=None) for n in range(30)])


def test_an_unknown_system_is_refused():
    runs = as_measured(grid(tps=(1, 2)))
    with pytest.raises(UnknownNameError, match="unknown system 'h1000_sxm'"):
        fit([*runs, replace(runs[0], system="h1000_sxm")])
