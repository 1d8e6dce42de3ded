"""Every line of `FORECASTERS` is held to these: a new one is tested by being there."""

import math
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoscaler import forecast as module
from autoscaler.controller import ControllerState, step
from autoscaler.forecast import FORECASTERS, fit, predict
from autoscaler.forecast_params import ForecastParams
from autoscaler.forecast_step import ForecastState, forecast
from autoscaler.forecaster import Forecaster
from tests.autoscaler.build import drive, main_only, params
from tests.autoscaler.test_history import history_of

FITTED = ("arima", "holt_winters", "seasonal")
DAY_S = 86_400.0

every_method = pytest.mark.parametrize("method", sorted(FORECASTERS))
quick = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module", autouse=True)
def library():
    """Loaded outside of any example's time."""
    from autoscaler.fitting import load_library

    load_library()


def predicted(method, history, horizon_s, *, season_s=0.0):
    return predict(method, history, horizon_s, fit(method, history, season_s=season_s))


def every(step_s, duration_s, load):
    return history_of(
        [(i * step_s, load(i * step_s)) for i in range(int(duration_s / step_s) + 1)],
        keep_s=7 * DAY_S,
    )


histories = st.lists(
    st.tuples(st.floats(min_value=0.5, max_value=90.0), st.floats(min_value=0.0, max_value=1e7)),
    min_size=1,
    max_size=80,
).map(
    lambda rows: history_of(
        zip(
            np.cumsum([gap for gap, _ in rows]).tolist(),
            [value for _, value in rows],
            strict=True,
        )
    )
)


@every_method
@quick
@given(history=histories, horizon_s=st.floats(min_value=0.0, max_value=1e4))
def test_a_forecast_is_finite_and_never_negative(method, history, horizon_s):
    value = predicted(method, history, horizon_s, season_s=600.0)
    assert math.isfinite(value)
    assert value >= 0.0


@every_method
@quick
@given(
    load=st.floats(min_value=0.0, max_value=1e7),
    horizon_s=st.floats(min_value=0.0, max_value=7200.0),
    season_s=st.sampled_from([0.0, 600.0]),
)
def test_a_constant_load_is_forecast_at_any_horizon(method, load, horizon_s, season_s):
    history = every(5.0, 1200.0, lambda _: load)
    assert predicted(method, history, horizon_s, season_s=season_s) == pytest.approx(load, rel=0.01)


@every_method
def test_a_constant_load_with_noise_is_forecast_within_a_few_percent(method):
    rng = np.random.default_rng(1)
    history = every(2.0, 1800.0, lambda _: 5000.0 + rng.normal(0.0, 100.0))
    for horizon_s in (10.0, 60.0, 600.0):
        assert predicted(method, history, horizon_s) == pytest.approx(5000.0, rel=0.06)


@pytest.mark.parametrize("method", ["holt_winters", "arima"])
@pytest.mark.parametrize("horizon_s", [10.0, 60.0, 180.0])
def test_a_ramp_is_continued_to_the_horizon_and_no_other_time(method, horizon_s):
    rng = np.random.default_rng(2)
    history = every(2.0, 1800.0, lambda t: 2000.0 + 3.0 * t + rng.normal(0.0, 5.0))
    ahead = predicted(method, history, horizon_s) - history.newest
    # Damped, so a little short of the line, and within a step of the grid.
    assert 0.7 * 3.0 * horizon_s - 20.0 <= ahead <= 3.0 * (horizon_s + 10.0) + 20.0


def daily(t):
    return 3000.0 - 2000.0 * math.cos(2.0 * math.pi * t / DAY_S)


@pytest.mark.parametrize("season_s", [0.0, DAY_S])
@pytest.mark.parametrize("horizon_s", [60.0, 180.0, 3600.0, 6 * 3600.0])
def test_a_season_found_or_set_is_forecast_at_the_horizon(horizon_s, season_s):
    history = every(30.0, 2.25 * DAY_S, daily)
    value = predicted("seasonal", history, horizon_s, season_s=season_s)
    assert value == pytest.approx(daily(history.newest_s + horizon_s), rel=0.03)


def test_a_busier_day_keeps_the_change_of_the_season():
    history = every(30.0, 2.25 * DAY_S, lambda t: daily(t) + (500.0 if t > 2 * DAY_S else 0.0))
    now_s = history.newest_s
    ahead = predicted("seasonal", history, 3600.0, season_s=DAY_S) - history.newest
    assert ahead == pytest.approx(daily(now_s + 3600.0) - daily(now_s), rel=0.1)


@pytest.mark.parametrize("kind", ["flat", "noise", "walk"])
def test_no_season_is_found_where_there_is_none(kind):
    rng = np.random.default_rng(3)
    noise = rng.normal(0.0, 5.0, size=6000)
    loads = {"flat": 0.0 * noise, "noise": 10.0 * noise, "walk": np.cumsum(noise)}
    history = every(30.0, 2 * DAY_S, lambda t: 5000.0 + float(loads[kind][int(t / 30.0)]))
    assert fit("seasonal", history, season_s=0.0) == ()


@every_method
def test_missing_data_holds(method):
    seen = every(5.0, 900.0, lambda _: 800.0)
    gap = history_of([*seen.points, (1500.0, 800.0)])
    assert predicted(method, gap, 60.0) == pytest.approx(800.0, rel=0.01)


@every_method
def test_a_single_point_is_enough_and_zero_traffic_is_data(method):
    assert predicted(method, history_of([(5.0, 123.0)]), 60.0) == pytest.approx(123.0)
    assert predicted(method, history_of([(5.0, 0.0)]), 60.0) == 0.0


@every_method
def test_traffic_that_ends_is_forecast_to_be_gone(method):
    history = every(5.0, 1800.0, lambda t: 900.0 if t < 900.0 else 0.0)
    assert predicted(method, history, 60.0) < 50.0


def test_nothing_observed_is_unknown_not_zero():
    assert forecast(ForecastState(), 10.0, ForecastParams()) is None


def raises(*_):
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "broken",
    [
        Forecaster(predict=lambda *_: math.nan),
        Forecaster(predict=lambda *_: math.inf),
        Forecaster(predict=raises),
        Forecaster(predict=lambda *_: 1.0, fit=raises),
        Forecaster(predict=lambda *_: 1.0, fit=lambda *_: (math.nan,)),
    ],
)
def test_a_broken_forecaster_is_overruled_by_the_last_value(monkeypatch, broken):
    monkeypatch.setattr(module, "FORECASTERS", MappingProxyType({"ewma": broken}))
    assert math.isnan(predicted("ewma", history_of([(0.0, 5.0)]), 10.0))
    p = params(forecast=ForecastParams(method="ewma"))
    _, results = drive(p, [main_only(0.0, rate=5.0), main_only(2.0, rate=7.0)])
    assert [result.forecast["main"] for result in results] == [0.005, 0.007]


def test_the_horizon_is_cold_start_plus_a_tick(monkeypatch):
    seen = []

    def spy(history, horizon_s, coefficients):
        seen.append(horizon_s)
        return history.newest

    monkeypatch.setattr(module, "FORECASTERS", {"last_value": Forecaster(predict=spy)})
    p = params(tick_s=2.0, forecast=ForecastParams(method="last_value"))
    step(ControllerState(), main_only(0.0, rate=10.0), p)
    assert seen == [pytest.approx(22.0)]


@pytest.mark.parametrize("method", FITTED)
def test_a_fit_is_made_once_in_a_while_and_used_in_between(monkeypatch, method):
    fits = []
    plain = FORECASTERS[method]

    def counted(history, season_s):
        fits.append(history.newest_s)
        return plain.fit(history, season_s)

    table = MappingProxyType({method: Forecaster(predict=plain.predict, fit=counted)})
    monkeypatch.setattr(module, "FORECASTERS", table)
    p = params(forecast=ForecastParams(method=method, refit_s=60.0))
    drive(p, [main_only(2.0 * i, rate=100.0 + i) for i in range(100)])
    assert fits == [0.0, 60.0, 120.0, 180.0]


def test_forecasts_of_an_arima_are_those_of_the_library():
    import warnings

    from statsmodels.tsa.arima.model import ARIMA

    from autoscaler import arima

    rng = np.random.default_rng(4)
    values = 3000.0 + np.cumsum(rng.normal(0.0, 60.0, 120)) + rng.normal(0.0, 200.0, 120)
    history = history_of([(10.0 * i, v) for i, v in enumerate(values)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = ARIMA(values / values.mean(), order=(1, 1, 1)).fit(method="innovations_mle")
    expected = theirs.forecast(6)[-1] * values.mean()
    assert arima.predict(history, 60.0, arima.fit(history, 0.0)) == pytest.approx(
        expected, rel=1e-3
    )


def test_a_burst_is_forecast_at_once_and_noise_as_its_mean():
    noise = np.random.default_rng(0).normal(10.0, 1.0, size=300)
    quiet = [(float(i), float(load)) for i, load in enumerate(noise)]
    burst = [*quiet, (300.0, 40.0)]
    assert predicted("ewma_or_burst", history_of(quiet), 60.0) == pytest.approx(10.0, abs=0.6)
    assert predicted("ewma_or_burst", history_of(burst), 60.0) == 40.0


@pytest.mark.parametrize("method", ["ewma", "ewma_or_burst"])
def test_after_half_a_minute_of_silence_a_mean_has_no_tail(method):
    busy = [(float(t), 10.0) for t in range(60)]
    silent = [(60.0 + t, 0.0) for t in range(40)]
    assert predicted(method, history_of(busy + silent[:20]), 60.0) > 1.0
    assert predicted(method, history_of(busy + silent), 60.0) == 0.0
