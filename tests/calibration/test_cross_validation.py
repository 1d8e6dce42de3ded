"""Folds never share a condition, and errors on runs left out do not depend on who computes them."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.calibration.cross_validation import (
    HELD_OUT,
    By,
    cross_validate,
    figures,
    folds,
    one_model,
)
from cluster.errors import InputError
from cluster.model.catalogue import get_model
from tests.calibration.samples import run
from tests.calibration.synthetic import BASE, FIND, LLAMA, ONCE, QWEN, as_measured, grid, scaled

TRUTH = scaled({"engine.vllm.step_s": 3.0})
RUNS = st.lists(
    st.builds(
        run,
        id=st.uuids().map(str),
        config=st.sampled_from(["a", "b", "c"]),
        system=st.sampled_from(["h100_sxm", "b200_sxm"]),
        concurrency=st.integers(1, 64),
        isl=st.sampled_from([128, 1024]),
        tp=st.sampled_from([1, 2, 4]),
    ),
    min_size=12,
    max_size=60,
)


def condition(each):
    return (
        each.config,
        each.system,
        each.backend,
        each.precision,
        each.isl,
        each.osl,
        each.concurrency,
    )


@given(runs=RUNS, by=st.sampled_from(list(By)), parts=st.sampled_from([None, 2, 5, 12]))
def test_no_condition_is_on_both_sides(runs, by, parts):
    try:
        found = folds(runs, by, parts=parts)
    except InputError:
        return
    tested: list[int] = []
    for fold in found:
        assert sorted([*fold.train, *fold.test]) == list(range(len(runs)))
        assert len(fold.train) and len(fold.test)
        train = {condition(runs[row]) for row in fold.train}
        assert train.isdisjoint(condition(runs[row]) for row in fold.test)
        tested += fold.test.tolist()
    assert len(tested) == len(set(tested))
    if by is not By.CONDITIONS or parts is not None:
        assert len(tested) == len(runs)
    assert [fold.name for fold in found] == sorted(fold.name for fold in found)


@given(runs=RUNS, data=st.data())
def test_whether_a_condition_is_left_out_depends_on_it_alone(runs, data):
    def out(rows):
        try:
            return {rows[row].id for fold in folds(rows, By.CONDITIONS) for row in fold.test}
        except InputError:
            return None

    whole = out(runs)
    fewer = data.draw(st.permutations(runs))[: len(runs) // 2]
    part = out(fewer)
    if whole is not None and part is not None:
        assert part == whole & {each.id for each in fewer}


def test_about_a_third_of_many_conditions_is_left_out():
    runs = [run(id=str(n), concurrency=n + 1) for n in range(2000)]
    (fold,) = folds(runs, By.CONDITIONS)
    assert len(fold.test) / len(runs) == pytest.approx(HELD_OUT, abs=0.03)
    sizes = [len(fold.test) for fold in folds(runs, By.CONDITIONS, parts=10)]
    assert len(sizes) == 10
    assert min(sizes) > 150


def test_models_and_systems_are_left_out_by_name():
    runs = [run(id="1"), run(id="2", config="b"), run(id="3", system="b200_sxm"), run(id="4")]
    by_model = {fold.name: fold.test.tolist() for fold in folds(runs, By.MODELS)}
    assert by_model == {"b": [1], "openai--gpt-oss-20b": [0, 2, 3]}
    by_system = {fold.name: fold.test.tolist() for fold in folds(runs, By.SYSTEMS)}
    assert by_system == {"b200_sxm": [2], "h100_sxm": [0, 1, 3]}


def test_one_model_under_two_names_is_left_out_at_once():
    known = {
        "v3": get_model("deepseek-ai/DeepSeek-V3"),
        "r1": replace(get_model("deepseek-ai/DeepSeek-V3"), name="other", source="elsewhere"),
        "llama": get_model("meta-llama/Meta-Llama-3.1-8B"),
    }
    alike = one_model(known)
    assert alike == {"v3": "r1, v3", "r1": "r1, v3", "llama": "llama"}
    runs = [run(id=name, config=name) for name in known]
    assert [fold.name for fold in folds(runs, By.MODELS, alike=alike)] == ["llama", "r1, v3"]
    with pytest.raises(InputError, match="cannot be cross-validated by models"):
        folds(runs[:2], By.MODELS, alike=alike)


def test_nothing_to_leave_out_is_refused():
    with pytest.raises(InputError, match=r"by systems.*Fix: .*models, conditions, none"):
        folds([run(id="1"), run(id="2", concurrency=4)], By.SYSTEMS)
    with pytest.raises(InputError, match="the 0 runs"):
        folds([], By.CONDITIONS)


def test_perfect_predictions_have_no_error():
    runs = as_measured(grid(tps=(1, 2)))
    ttft = np.array([each.ttft_s for each in runs])
    tpot = np.array([each.tpot_s for each in runs])
    found = figures(runs, ttft, tpot)
    assert (found.runs, found.tpot, found.ttft, found.throughput) == (len(runs), 0.0, 0.0, 0.0)
    assert found.layout_ratio == pytest.approx(0.0)
    worse = figures(runs, ttft * 1.2, tpot * 1.1)
    assert (worse.ttft, worse.tpot) == (pytest.approx(0.2), pytest.approx(0.1))


@pytest.fixture(scope="module")
def measured():
    sizes = {"concurrencies": (1, 8, 64), "tps": (1, 2)}
    return as_measured([*grid(**sizes), *grid(**sizes, config=QWEN)], TRUTH)


def test_a_model_left_out_is_predicted_from_the_other(measured):
    found = cross_validate(measured, FIND, start=BASE, by=By.MODELS, stages=ONCE)
    assert set(found.folds) == {LLAMA, QWEN}
    assert found.held_out.runs == len(measured)
    assert found.held_out.tpot < found.before.tpot / 2
    assert not found.skipped


def test_the_number_of_processes_changes_nothing(measured):
    options = {"start": BASE, "by": By.CONDITIONS, "parts": 2, "stages": ONCE}
    environment = dict(os.environ)
    told: list[str] = []
    alone = cross_validate(measured, FIND, **options)
    together = cross_validate(measured, FIND, **options, jobs=2, progress=told.append)
    assert dict(os.environ) == environment
    assert len(told) == 2
    assert list(together.folds) == list(alone.folds)
    for name, each in alone.folds.items():
        other = together.folds[name]
        assert other.runs == each.runs
        assert other.tpot == pytest.approx(each.tpot, rel=1e-6)
        assert other.ttft == pytest.approx(each.ttft, rel=1e-6)


def test_copies_are_tested_once(measured):
    copies = [replace(each, id=f"copy of {each.id}") for each in measured]
    found = cross_validate([*measured, *copies], FIND, start=BASE, by=By.CONDITIONS, stages=ONCE)
    (fold,) = folds(measured, By.CONDITIONS)
    assert found.held_out.runs == len(fold.test)


def test_a_fold_that_leaves_too_few_runs_is_skipped_and_said(measured):
    lonely = [*measured, *as_measured(grid(concurrencies=(2,), tps=(1,), system="b200_sxm"))]
    found = cross_validate(lonely, FIND, start=BASE, by=By.SYSTEMS, stages=ONCE)
    assert list(found.folds) == ["b200_sxm"]
    assert found.held_out.runs == 4
    assert "4 distinct runs" in found.skipped["h100_sxm"]
    few = [*measured[:12], *lonely[-4:]]
    with pytest.raises(InputError, match=r"no fold by systems can be fitted: .*a fit needs 20"):
        cross_validate(few, FIND, start=BASE, by=By.SYSTEMS, stages=ONCE)
