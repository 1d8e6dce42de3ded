from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cluster.calibration.columns import columns_of, times
from cluster.calibration.evaluation import answers, evaluate
from cluster.calibration.metrics import coverage, error, errors, kendall_tau, noise, ranking
from cluster.calibration.models import models_of
from cluster.errors import InputError, UnknownNameError
from tests.calibration.samples import run

LAYOUTS = [(1, 1, 1, 1), (2, 1, 2, 1), (2, 1, 1, 2), (4, 1, 4, 1), (1, 4, 1, 4), (4, 4, 1, 16)]
seconds = st.floats(1e-4, 1e2)


@st.composite
def measured_runs(draw):
    """Runs of a few models, systems, concurrencies and layouts, some of them repeated."""
    found = []
    for number in range(draw(st.integers(1, 14))):
        tp, dp, moe_tp, moe_ep = draw(st.sampled_from(LAYOUTS))
        found.append(
            run(
                id=str(number),
                config=draw(st.sampled_from(["a--x", "b--y"])),
                precision=draw(st.sampled_from(["fp8", ""])),
                concurrency=draw(st.sampled_from([4, 64])),
                tp=tp,
                attention_dp=dp,
                moe_tp=moe_tp,
                moe_ep=moe_ep,
                ttft_s=draw(seconds),
                tpot_s=draw(seconds),
            )
        )
    return found


def measured(runs):
    return times([found.ttft_s for found in runs], [found.tpot_s for found in runs])


def figures_of(found):
    return [
        error for groups in found.values() for group in groups.values() for error in group.values()
    ]


@given(measured_runs(), st.booleans())
def test_a_perfect_prediction_has_no_error_and_no_regret(runs, as_written):
    columns = columns_of(runs, as_written=as_written)
    truth = measured(runs)
    assert coverage(truth) == 1.0
    for figure in figures_of(errors(columns, truth)):
        assert (figure.median, figure.mean, figure.bias) == (0.0, 0.0, 0.0)
        assert figure.rows > 0
    found = ranking(columns, truth)
    assert found.unanswered == 0
    if found.conditions:
        assert found.pairs > 0
        assert found.ratio_p90 == pytest.approx(0.0, abs=1e-12)
        assert (found.regret, found.hit_rate) == (0.0, 1.0)
        assert 0.0 < found.chance <= 1.0
    if found.ranked:
        assert found.tau == pytest.approx(1.0)


@given(measured_runs(), st.floats(0.01, 100.0))
def test_a_common_factor_is_an_error_but_no_error_of_ratios(runs, factor):
    columns = columns_of(runs)
    truth = measured(runs)
    scaled = times(truth.ttft_s * factor, truth.tpot_s * factor)
    found = ranking(columns, scaled)
    if found.conditions:
        assert found.ratio_p90 == pytest.approx(0.0, abs=1e-9)
        assert found.regret == pytest.approx(0.0, abs=1e-9)
    for group in errors(columns, scaled)["overall"].values():
        assert group["tpot"].bias == pytest.approx(factor - 1.0, abs=1e-9)
        assert group["ttft"].median == pytest.approx(abs(factor - 1.0), abs=1e-9)
        assert group["throughput"].bias == pytest.approx(1.0 / factor - 1.0, rel=1e-6, abs=1e-9)


@given(measured_runs(), st.randoms(use_true_random=False), st.data())
def test_the_order_of_rows_does_not_matter(runs, random, data):
    guesses = [(data.draw(seconds), data.draw(seconds)) for _ in runs]
    order = list(range(len(runs)))
    random.shuffle(order)

    def figures(indices):
        chosen = columns_of([runs[n] for n in indices])
        guess = times([guesses[n][0] for n in indices], [guesses[n][1] for n in indices])
        found = ranking(chosen, guess)
        return list(vars(found).values()) + list(vars(noise(chosen)).values())

    assert figures(order) == pytest.approx(figures(range(len(runs))), rel=1e-9, nan_ok=True)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=9))
def test_tau_is_that_of_scipy(pairs):
    scipy_stats = pytest.importorskip("scipy.stats")
    a, b = np.array(pairs, dtype=np.float64).T
    assume(np.ptp(a) > 0 and np.ptp(b) > 0)
    assert kendall_tau(a, b) == pytest.approx(scipy_stats.kendalltau(a, b).statistic)


def test_tau_without_an_order():
    rising, flat = np.array([1.0, 2.0, 3.0]), np.ones(3)
    assert kendall_tau(rising, -rising) == -1.0
    assert kendall_tau(flat, rising) == 0.0
    assert np.isnan(kendall_tau(rising, flat))


def test_throughput_is_littles_law_per_gpu():
    columns = columns_of([run(concurrency=8, osl=100, tp=4, pp=2, attention_dp=1)])
    # 8 requests in flight of 1 s + 100 x 40 ms = 5 s and 100 tokens: 160 tokens/s on 8 GPUs
    assert columns.throughput(times([1.0], [0.04])) == pytest.approx([20.0])


def test_gpus_are_those_written_whatever_the_degrees_mean():
    twice = run(tp=4, attention_dp=4, moe_tp=1, moe_ep=16)
    for as_written in (False, True):
        assert columns_of([twice], as_written=as_written).devices == [16.0]


def test_errors_by_hand():
    truth = np.array([1.0, 2.0, 4.0, np.nan, 5.0])
    guess = np.array([1.1, 1.0, 4.0, 1.0, np.nan])
    found = error(guess, truth)
    assert found.rows == 3
    assert found.median == pytest.approx(0.1)
    assert found.mean == pytest.approx(0.2)
    assert found.bias == pytest.approx(0.0)
    nothing = error(np.array([np.nan]), np.array([1.0]))
    assert nothing.rows == 0
    assert np.isnan(nothing.median)


def test_errors_are_told_by_group():
    runs = [run(), run(id="b", system="b200_sxm", backend="sglang", precision="")]
    found = errors(columns_of(runs), times([0.1205, 0.241], [0.01125, 0.01125]))
    assert found["system"]["h100_sxm"]["ttft"].median == 0.0
    assert found["system"]["b200_sxm"]["ttft"].median == pytest.approx(1.0)
    assert found["backend x precision"]["sglang as stored"]["ttft"].rows == 1
    assert set(found) == {"overall", "system", "model", "backend", "backend x precision"}


def two_layouts(*, ttft_s=0.0001):
    """TP1 and TP2 in one condition: TP1 has the higher measured throughput per GPU."""
    return [
        run(id="tp1", tp=1, moe_tp=1, ttft_s=ttft_s, tpot_s=0.010),
        run(id="tp2", tp=2, moe_tp=2, ttft_s=ttft_s, tpot_s=0.008),
    ]


def test_a_wrong_pick_costs_what_it_lost():
    runs = two_layouts()
    columns = columns_of(runs)
    truth = columns.throughput(measured(runs))
    found = ranking(columns, times([0.0001, 0.0001], [0.020, 0.008]))
    assert found.regret == pytest.approx(1.0 - truth[1] / truth[0])
    assert (found.hit_rate, found.chance, found.tau) == (0.0, 0.5, -1.0)
    assert found.ratio_median == pytest.approx(0.5, rel=1e-3)  # TP1 is predicted half as fast


def test_layouts_predicted_alike_are_picked_equally_often():
    columns = columns_of(two_layouts())
    found = ranking(columns, times([0.0001, 0.0001 * 0.5], [0.010, 0.005]))
    assert (found.hit_rate, found.tau) == (0.5, 0.0)


def test_a_missing_answer_is_counted_and_never_picked():
    columns = columns_of(two_layouts())
    only_tp2 = ranking(columns, times([None, 0.0001], [None, 0.008]))
    assert (only_tp2.conditions, only_tp2.unanswered, only_tp2.pairs) == (1, 0, 0)
    assert only_tp2.hit_rate == 0.0
    assert ranking(columns, times([None, None], [None, None])).unanswered == 1
    assert coverage(times([0.1, None], [0.1, 0.1])) == 0.5


@pytest.mark.parametrize("value", [-1.0, 0.0, np.inf, np.nan])
def test_a_time_that_cannot_be_is_no_answer(value):
    assert coverage(times([value], [0.01])) == 0.0


def test_a_repeated_layout_counts_once():
    runs = [*two_layouts(), replace(two_layouts()[1], id="again", tpot_s=0.009)]
    found = ranking(columns_of(runs), measured(runs))
    assert (found.conditions, found.pairs, found.chance) == (1, 1, 0.5)


def test_a_copy_in_another_spelling_is_no_second_layout():
    plain = run(id="plain", tp=4, moe_tp=1, moe_ep=4)
    twice = run(id="twice", tp=4, attention_dp=4, moe_tp=1, moe_ep=16)
    assert ranking(columns_of([plain, twice]), measured([plain, twice])).conditions == 0
    written = ranking(columns_of([plain, twice], as_written=True), measured([plain, twice]))
    assert written.conditions == 1


def test_noise_is_between_repeats_that_differ():
    runs = [
        run(id="1", tpot_s=0.010, ttft_s=0.10),
        run(id="2", tpot_s=0.011, ttft_s=0.15),
        run(id="3", backend_version="0.20.0", tpot_s=0.5),
        run(id="4", osl=64),
        run(id="5", osl=64),
        run(id="6", isl=7),
        run(id="7", isl=7, tpot_s=None),
    ]
    found = noise(columns_of(runs))
    assert (found.repeated, found.copies) == (2, 1)
    assert found.tpot_median == pytest.approx(0.1)
    assert found.ttft_p90 == pytest.approx(0.5)


def test_a_run_without_an_answer_does_not_stop_the_others():
    runs = [
        run(id="good"),
        run(id="no model", config="nobody--nothing"),
        run(id="no system", system="abacus"),
        run(id="no grid", tp=8),
        run(id="no fit", concurrency=999),
    ]

    def predict(asked):
        if any(found.system == "abacus" for found in asked):
            raise UnknownNameError(kind="system", name="abacus", known=["h100_sxm"])
        none = [found.tp == 8 or found.concurrency == 999 for found in asked]
        return np.where(none, np.nan, 0.2), np.full(len(asked), 0.01)

    found = answers(runs, models_of(None), predict=predict)
    assert found.times.known.tolist() == [True, False, False, False, False]
    assert np.isnan(found.times.tpot_s[1:]).all()  # half an answer is none
    assert set(found.reasons) == {"no model", "no system", "no grid", "no fit"}
    assert "nobody--nothing" in found.reasons["no model"]
    assert "unknown system 'abacus'" in found.reasons["no system"]
    assert "tp x attention_dp = 8 but moe_tp x moe_ep = 2" in found.reasons["no grid"]
    assert "no answer for this layout on h100_sxm" in found.reasons["no fit"]


def test_without_any_model_there_is_nothing_to_answer():
    def predict(asked):
        raise AssertionError(asked)

    with pytest.raises(InputError, match=r"nobody--nothing.*1 more"):
        answers(
            [run(config="nobody--nothing"), run(id="b", config="nobody--else")],
            models_of(None),
            predict=predict,
        )


@given(measured_runs())
def test_everything_is_evaluated_even_where_nothing_was_measured(runs):
    blank = [replace(found, ttft_s=None, tpot_s=None) for found in runs]
    found = evaluate(columns_of(blank), measured(runs))
    assert (found.coverage, found.ranking.conditions, found.picks.pools) == (1.0, 0, 0)
    assert all(figure.rows == 0 for figure in figures_of(found.errors))
