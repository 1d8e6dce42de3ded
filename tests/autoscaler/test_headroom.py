"""Headroom: what is learned from forecasts that were short, and what is asked for then."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.headroom import HEADROOMS, MOST_USED, HeadroomState, Seen, learn, share, stocked
from autoscaler.headroom_params import HeadroomParams
from autoscaler.params import ScalingParams
from autoscaler.params_json import params_from_json, params_to_json
from autoscaler.replay import replay
from autoscaler.virtual import Scenario, run
from cluster.errors import ConfigError, UnknownNameError
from tests.autoscaler.build import FLIGHT, RATE, obeying, params

LEARNED = HeadroomParams(method="learned")
HORIZON_S, TICK_S = 60.0, 5.0
every_method = pytest.mark.parametrize("method", sorted(HEADROOMS))
loads = st.lists(st.floats(min_value=0.0, max_value=1e4), min_size=1, max_size=400)


def learned(values, *, forecast=None, objective=0.9, memory_s=3600.0, gaps=()):
    """The state after these loads, one a tick; forecast is the newest unless it is given."""
    state, points = HeadroomState(), ()
    for index, value in enumerate(values):
        if index in gaps:
            continue
        points = (*points, (index * TICK_S, float(value)))[-360:]
        seen = Seen(
            points=points,
            forecast=float(value) if forecast is None else forecast,
            horizon_s=HORIZON_S,
        )
        state = learn(state, seen, objective=objective, memory_s=memory_s)
    return state


@settings(max_examples=40, deadline=None)
@given(loads)
def test_a_stock_is_finite_and_never_negative_and_memory_is_bounded(values):
    state = learned(values, memory_s=600.0)
    assert state.stock is None or 0.0 <= state.stock <= max(values)
    assert len(state.errors) <= 600.0 / 30.0 + 1
    assert len(state.promises) <= HORIZON_S / 30.0 + 1


@every_method
@given(
    stock=st.one_of(st.none(), st.floats(min_value=0.0, max_value=100.0)),
    forecasts=st.tuples(*[st.floats(min_value=0.0, max_value=1e4)] * 2),
)
def test_more_is_carried_for_a_higher_forecast_and_never_less_than_it(method, stock, forecasts):
    replicas = HEADROOMS[method].replicas
    low, high = (replicas(HeadroomState(stock=stock), one, 0.8) for one in sorted(forecasts))
    assert low <= high
    assert low >= min(forecasts)


def test_the_stock_is_what_all_but_the_allowed_share_of_forecasts_were_short_by():
    noise = np.random.default_rng(0).normal(10.0, 1.0, size=4000)
    state = learned(noise, forecast=10.0, objective=0.9, memory_s=20_000.0)
    # A mean of three points: a third of the variance. 1.28 deviations are exceeded by a tenth.
    assert state.stock == pytest.approx(1.28 / math.sqrt(3.0), rel=0.15)


def test_a_constant_load_needs_no_stock_but_leaves_its_engines_some_time():
    state = learned([7.0] * 400)
    assert state.stock == 0.0
    assert stocked(state, 7.0, 0.8) == pytest.approx(7.0 / MOST_USED)


def test_jumps_that_come_again_are_in_the_stock():
    hours = ([4.0] * 60 + [10.0] * 60) * 6  # up every ten minutes, after five
    assert learned(hours, objective=0.95).stock == pytest.approx(6.0, abs=0.1)
    assert learned([4.0] * 720).stock == 0.0


def test_a_share_is_free_until_there_are_errors_enough_for_the_quantile():
    values = np.random.default_rng(0).uniform(5.0, 6.0, size=200)
    few, enough = learned(values[:60], objective=0.9), learned(values, objective=0.9)
    assert few.stock is None
    assert stocked(few, 4.0, 0.8) == share(few, 4.0, 0.8) == 5.0
    assert enough.stock is not None


def test_what_was_not_observed_is_not_judged():
    whole = learned([3.0] * 300)
    gappy = learned([3.0] * 300, gaps=range(100, 200))
    assert 0 < len(gappy.errors) < len(whole.errors)
    assert {error for _, error in gappy.errors} == {0.0}


def test_the_same_observation_again_teaches_nothing():
    state = learned([3.0] * 100)
    seen = Seen(points=((0.0, 3.0), (99 * TICK_S, 3.0)), forecast=3.0, horizon_s=HORIZON_S)
    again = learn(state, seen, objective=0.9, memory_s=3600.0)
    assert learn(again, seen, objective=0.9, memory_s=3600.0) == again


def test_errors_are_forgotten():
    burst = [4.0] * 60 + [10.0] * 60
    assert learned(burst + [4.0] * 1500, memory_s=3600.0).stock == 0.0


def noisy(duration_s, *, busy=2.2, deviation=0.02):
    noise = np.random.default_rng(1).normal(1.0, deviation, size=int(duration_s) + 2)
    return Scenario(
        duration_s=duration_s,
        arrival_tokens_per_s=lambda t: RATE * busy * noise[int(t)],
        dt_s=1.0,
    )


def test_a_load_without_noise_needs_fewer_replicas_than_its_share():
    scaling = ScalingParams(down_utilisation=0.75)
    shares = params(maximum=8, scaling=scaling)
    learns = replace(shares, headroom=replace(LEARNED, objective=0.95))
    steady = {"ticks": 600, "target": 4, "rate": 2.45 * RATE, "flight": FLIGHT}
    ends = (obeying(p, **steady)[2] for p in (learns, shares))
    assert tuple(ends) == (3, 4)


def test_with_a_learned_stock_a_noisy_load_changes_replicas_once_in_ten_minutes_at_most():
    p = params(maximum=8, headroom=replace(LEARNED, objective=0.95))
    targets = [sample.target["main"] for sample in run(p, noisy(7200.0)).samples]
    assert sum(a != b for a, b in pairwise(targets)) <= 12


def test_a_run_with_a_learned_stock_replays_identically():
    p = params(maximum=8, headroom=replace(LEARNED, objective=0.95))
    report = replay(run(p, noisy(2400.0)).log_lines())
    assert report.identical
    assert report.ticks > 0


def test_parameters_are_read_back_as_written_and_bad_ones_are_named():
    p = params(headroom=replace(LEARNED, objective=0.95))
    assert params_from_json(json.loads(json.dumps(params_to_json(p))), source="test") == p
    with pytest.raises(UnknownNameError, match="share"):
        HeadroomParams(method="guess")
    for bad in ({"objective": 1.0}, {"objective": 0.0}, {"memory_s": 60.0}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            HeadroomParams(**bad)
