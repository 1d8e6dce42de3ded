"""`controller.step` with every forecaster, `auto` included."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.controller import ControllerState, step
from autoscaler.forecast import AUTO, methods, prepare
from autoscaler.forecast_params import ForecastParams
from autoscaler.params import ScalingParams
from autoscaler.reasons import Action
from autoscaler.replay import replay
from autoscaler.virtual import Scenario, run
from tests.autoscaler.build import drive, load, main_only, of, params, size, snapshot, with_main

every_method = pytest.mark.parametrize("method", sorted(methods()))
quick = settings(max_examples=5, deadline=None)


@pytest.fixture(scope="module", autouse=True)
def library():
    prepare(AUTO)


def with_method(method, **more):
    # A season short enough to be seen in short runs.
    return params(
        forecast=ForecastParams(method=method, season_s=600.0, backtest_s=1200.0),
        **more,
    )


def observed(now_s, rate, *, target=1):
    """A snapshot whose load is unknown if `rate` is None."""
    age_s = 60.0 if rate is None else 0.0
    seen = load(now_s, rate=rate or 0.0, age=age_s)
    return snapshot(now_s, [size(now_s, target=target)], [seen])


@every_method
@quick
@given(
    loads=st.lists(
        st.one_of(st.none(), st.floats(min_value=0.0, max_value=20_000.0)), min_size=1, max_size=15
    )
)
def test_no_forecast_leaves_the_bounds_or_the_step_limit(method, loads):
    p = with_method(
        method, minimum=1, maximum=7, scaling=ScalingParams(max_step_up=2, up_delay_s=0.0)
    )
    state, target = ControllerState(), 1
    for i in range(20 * len(loads)):
        rate, now_s = loads[i // 20], 2.0 * i
        result = step(state, observed(now_s, rate, target=target), p)
        state = result.state
        for decision in of([result], Action.SCALE):
            assert 1 <= decision.value <= 7
            assert target - 1 <= decision.value <= target + 2
            assert rate is not None  # unknown load changes nothing
            target = decision.value


@every_method
@pytest.mark.parametrize("rate", [0.0, 1610.0])
def test_a_constant_load_settles_and_does_not_flap(method, rate):
    scenario = Scenario(duration_s=1200.0, arrival_tokens_per_s=lambda _: rate, dt_s=1.0)
    targets = [s.target["main"] for s in run(with_method(method), scenario).samples]
    settled = targets[len(targets) // 3 :]
    assert sum(a != b for a, b in pairwise(settled)) <= 1
    assert 1000.0 * 0.8 * targets[-1] >= rate


@every_method
def test_a_load_with_noise_changes_replicas_once_in_ten_minutes_at_most(method):
    noise = np.random.default_rng(0).normal(1.0, 0.04, size=4000)
    scenario = Scenario(
        duration_s=2400.0, arrival_tokens_per_s=lambda t: 2800.0 * noise[int(t)], dt_s=1.0
    )
    targets = [s.target["main"] for s in run(with_method(method, maximum=8), scenario).samples]
    settled = targets[len(targets) // 4 :]
    assert sum(a != b for a, b in pairwise(settled)) <= 3


@every_method
def test_a_log_replays_identically(method):
    scenario = Scenario(
        duration_s=900.0,
        arrival_tokens_per_s=lambda t: 1800.0 + 1500.0 * np.sin(t / 120.0),
        blind=((700.0, 760.0),),
        dt_s=1.0,
    )
    found = replay(run(with_method(method, light=True), scenario).log_lines())
    assert found.identical
    assert found.decisions > 10


@every_method
def test_a_load_a_thousand_times_as_high_is_forecast_a_thousand_times_as_high(method):
    rng = np.random.default_rng(5)
    rates = 500.0 + 200.0 * np.sin(np.arange(400) / 40.0) + rng.normal(0.0, 20.0, 400)

    def end(times):
        seen = [main_only(2.0 * i, rate=times * rate) for i, rate in enumerate(rates)]
        return drive(with_method(method), seen)[1][-1].forecast["main"]

    assert end(1000.0) == pytest.approx(1000.0 * end(1.0), rel=0.02)


def test_auto_takes_up_a_season_and_says_who_forecasts():
    def wave(t):
        return 2500.0 + 2000.0 * np.sin(2.0 * np.pi * t / 600.0)

    p = with_main(with_method(AUTO, maximum=10), cold_start_s=88.0)
    _, results = drive(p, [main_only(2.0 * i, rate=wave(2.0 * i)) for i in range(1200)])
    used = [result.forecasters["main"] for result in results]
    assert used[0] == "last_value"
    assert used[-1] != "last_value"
    assert sum(a != b for a, b in pairwise(used)) <= 4
    ahead = results[-1].forecast["main"] * p.main.capacity_tokens_per_s
    assert ahead == pytest.approx(wave(2398.0 + 90.0), abs=400.0)


def test_without_load_nobody_forecasts():
    result = step(ControllerState(), observed(0.0, None), with_method(AUTO))
    assert result.forecast == {}


def test_a_report_seen_again_leaves_the_memory_of_loads_as_it_is():
    p = with_method(AUTO)
    state, _ = drive(p, [main_only(2.0 * i, rate=100.0) for i in range(50)])
    seen = snapshot(100.0, [size(100.0)], [load(100.0, rate=900.0, age=2.0)])
    again, _ = drive(p, [seen], state=state)
    assert again.pool("main").forecast == state.pool("main").forecast
