import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.backtest import LEAST_JUDGED, STRIDE_S, Price, Trial, choose, judge, promise
from autoscaler.forecast import LAST_VALUE

PRICE = Price(
    capacity=1000.0,
    utilisation=0.8,
    minimum=1,
    maximum=50,
    hold_s=0.0,
    shortage_weight=100.0,
)
HORIZON_S = 60.0


def trial_of(load, forecasters, *, duration_s=1800.0, price=PRICE, keep_s=1e9, margin=0.05):
    """A trial of `forecasters` (time now -> tokens/s at the horizon) on `load` (time -> tokens/s).

    And who was chosen at each stride.
    """
    trial, chosen = Trial(), []
    points = tuple((t * 5.0, load(t * 5.0)) for t in range(int(duration_s / 5.0) + 1))
    for i in range(len(points)):
        now_s = points[i][0]
        if now_s - trial.made_s < STRIDE_S:
            continue
        trial = choose(judge(trial, points[: i + 1], price=price, keep_s=keep_s), margin=margin)
        chosen.append(trial.chosen)
        forecasts = {name: forecaster(now_s) for name, forecaster in forecasters.items()}
        trial = promise(trial, forecasts, now_s=now_s, horizon_s=HORIZON_S, price=price)
    return trial, chosen


def waves(t):
    return 4000.0 + 3000.0 * math.sin(2.0 * math.pi * t / 480.0)


def last(load):
    return {LAST_VALUE: load}


def test_who_knows_the_future_is_cheaper_and_is_chosen():
    trial, _ = trial_of(waves, {**last(waves), "oracle": lambda t: waves(t + HORIZON_S)})
    costs = trial.costs()
    assert costs["oracle"] < 0.8 * costs[LAST_VALUE]
    assert trial.chosen == "oracle"


@pytest.mark.parametrize("factor", [1 / 180, 0.5, 3.0, 180.0])
def test_a_wrong_horizon_costs(factor):
    wrong = {"wrong": lambda t: waves(t + HORIZON_S * factor)}
    right = {"right": lambda t: waves(t + HORIZON_S)}
    costs = trial_of(waves, {**last(waves), **wrong, **right})[0].costs()
    assert costs["right"] < costs["wrong"]


def test_a_small_error_on_the_short_side_costs_more_than_a_large_one_on_the_other():
    candidates = {"short": lambda t: 3600.0, "long": lambda t: 6400.0}
    costs = trial_of(lambda t: 6000.0, {**last(lambda t: 6000.0), **candidates})[0].costs()
    assert costs[LAST_VALUE] <= costs["long"] < costs["short"]


def test_a_forecaster_that_fails_once_is_worth_less_than_any_other():
    failing = {"failing": lambda t: math.nan if t == 600.0 else waves(t + HORIZON_S)}
    trial, chosen = trial_of(waves, {**last(waves), **failing})
    assert trial.costs()["failing"] == math.inf
    assert trial.chosen == LAST_VALUE
    assert "failing" in chosen  # before it failed


def test_a_failure_is_forgotten_with_the_window():
    failing = {"failing": lambda t: math.nan if t == 600.0 else waves(t + HORIZON_S)}
    trial, _ = trial_of(waves, {**last(waves), **failing}, duration_s=3600.0, keep_s=900.0)
    assert trial.chosen == "failing"


def test_last_value_wins_ties():
    trial, _ = trial_of(waves, {"same": waves, **last(waves)}, margin=0.0)
    assert trial.chosen == LAST_VALUE


def losses(**costs):
    return Trial(losses=tuple((float(i), costs) for i in range(LEAST_JUDGED)))


@pytest.mark.parametrize(
    ("before", "costs", "after"),
    [
        (LAST_VALUE, {"last_value": 100.0, "a": 96.0, "b": 97.0}, LAST_VALUE),
        (LAST_VALUE, {"last_value": 100.0, "a": 94.0, "b": 97.0}, "a"),
        ("a", {"last_value": 100.0, "a": 99.0, "b": 97.0}, "a"),
        ("a", {"last_value": 100.0, "a": 99.0, "b": 90.0}, "b"),
        ("a", {"last_value": 100.0, "a": 100.0, "b": 97.0}, LAST_VALUE),
        ("a", {"last_value": 100.0, "a": math.inf, "b": 97.0}, LAST_VALUE),
        ("a", {"last_value": math.inf, "a": math.inf, "b": math.inf}, LAST_VALUE),
    ],
)
def test_the_choice_has_hysteresis(before, costs, after):
    assert choose(replace(losses(**costs), chosen=before), margin=0.05).chosen == after


@given(st.lists(st.floats(min_value=0.97, max_value=1.03), min_size=40, max_size=40))
def test_costs_that_cross_within_the_margin_do_not_flap(factors):
    trial, chosen = Trial(chosen=LAST_VALUE), []
    for factor in factors:
        trial = replace(losses(last_value=100.0, a=99.0 * factor), chosen=trial.chosen)
        trial = choose(trial, margin=0.05)
        chosen.append(trial.chosen)
    assert set(chosen) == {LAST_VALUE}


def test_too_few_judgements_choose_nothing():
    few = replace(losses(last_value=100.0, a=1.0), losses=losses(last_value=1.0, a=0.0).losses[1:])
    assert choose(few, margin=0.05).chosen == LAST_VALUE


def test_where_nothing_was_observed_nothing_is_judged():
    made = promise(
        Trial(), last(waves) and {LAST_VALUE: 10.0}, now_s=0.0, horizon_s=60.0, price=PRICE
    )
    gap = judge(made, ((0.0, 5.0), (200.0, 5.0)), price=PRICE, keep_s=1e9)
    assert gap.losses == ()
    seen = judge(made, ((0.0, 5.0), (50.0, 0.0), (200.0, 5.0)), price=PRICE, keep_s=1e9)
    assert [due_s for due_s, _ in seen.losses] == [60.0]


def test_a_promise_is_judged_once():
    trial, _ = trial_of(waves, last(waves), price=replace(PRICE, hold_s=300.0))
    due = [due_s for due_s, _ in trial.losses]
    assert due == sorted(set(due))
    assert len(due) == 1 + (1800.0 - HORIZON_S) / STRIDE_S


def test_memory_is_bounded_by_horizon_and_window():
    trial, _ = trial_of(waves, last(waves), duration_s=7200.0, keep_s=600.0)
    assert len(trial.losses) <= 600.0 / STRIDE_S
    assert len(trial.promises) <= HORIZON_S / STRIDE_S + 2


def test_replicas_stay_paid_for_the_down_delay():
    spike = {LAST_VALUE: lambda t: 8000.0 if t == 300.0 else 800.0}
    plain, _ = trial_of(lambda t: 800.0, spike)
    held, _ = trial_of(lambda t: 800.0, spike, price=replace(PRICE, hold_s=120.0))
    assert plain.costs()[LAST_VALUE] == pytest.approx(58 + 10)
    assert held.costs()[LAST_VALUE] == pytest.approx(55 + 4 * 10)
