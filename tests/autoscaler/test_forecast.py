import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler import forecast as module
from autoscaler.forecast import FORECASTERS, forecast, last_value, remember

rates = st.floats(min_value=-1e6, max_value=1e6)
histories = st.lists(rates, min_size=1, max_size=20).map(
    lambda values: tuple((float(i), v) for i, v in enumerate(values))
)


@given(histories, st.floats(min_value=0.0, max_value=1e4), st.sampled_from(sorted(FORECASTERS)))
def test_a_forecast_is_finite_and_never_negative(history, horizon_s, method):
    predicted = forecast(history, horizon_s, method=method)
    assert predicted is not None
    assert math.isfinite(predicted)
    assert predicted >= 0.0


def test_nothing_observed_is_unknown_not_zero():
    assert forecast((), 10.0, method="last_value") is None


def test_zero_traffic_is_data():
    assert forecast(((0.0, 500.0), (2.0, 0.0)), 10.0, method="last_value") == 0.0


def test_a_broken_forecaster_is_overruled_by_the_last_value(monkeypatch):
    broken = {"broken": lambda history, horizon_s: math.nan}
    monkeypatch.setattr(module, "FORECASTERS", broken)
    assert forecast(((0.0, 5.0), (1.0, 7.0)), 10.0, method="broken") == 7.0


def test_last_value_is_the_same_at_any_horizon():
    history = ((0.0, 1.0), (5.0, 3.0))
    assert last_value(history, 0.0) == last_value(history, 3600.0) == 3.0


def test_a_report_seen_twice_is_one_point():
    history = remember((), 1.0, 10.0, keep_s=60.0)
    assert remember(history, 1.0, 99.0, keep_s=60.0) == history
    assert remember(history, 0.5, 99.0, keep_s=60.0) == history


@given(st.integers(min_value=1, max_value=200), st.floats(min_value=1.0, max_value=50.0))
def test_history_is_bounded_in_time(points, keep_s):
    history = ()
    for i in range(points):
        history = remember(history, float(i), 1.0, keep_s=keep_s)
    assert history[-1][0] - history[0][0] <= keep_s


def test_the_horizon_is_cold_start_plus_a_tick(monkeypatch):
    from autoscaler.controller import ControllerState, step
    from tests.autoscaler.build import main_only, params

    seen = []

    def spy(history, horizon_s):
        seen.append(horizon_s)
        return history[-1][1]

    monkeypatch.setattr(module, "FORECASTERS", {"last_value": spy})
    p = params(tick_s=2.0)
    step(ControllerState(), main_only(0.0, rate=10.0), p)
    assert seen == [pytest.approx(22.0)]
