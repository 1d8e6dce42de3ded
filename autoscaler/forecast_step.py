"""What load does the pool have to be ready for, as of this tick?

Joins the history, the fits and the choice of `auto` into the part of `controller.step` that
forecasts. Predictions are made every tick, from the newest point; coefficients are fitted at most
every `refit_s`, and one method per tick, since a fit takes tens of milliseconds.

Invariant: state and forecast follow from the observations alone, so that a replay finds the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from autoscaler.backtest import STRIDE_S, Price, Trial, choose, judge, promise
from autoscaler.forecast import AUTO, fit, is_fitted, members, predict
from autoscaler.forecast_params import ForecastParams
from autoscaler.forecaster import Coefficients
from autoscaler.history import History, remember


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Coefficients of a method as of `fitted_s`; None: the fit failed."""

    method: str
    fitted_s: float
    coefficients: Coefficients | None


@dataclass(frozen=True, kw_only=True)
class ForecastState:
    """What forecasts remember of a pool."""

    history: History = field(default_factory=History)
    fits: tuple[Fit, ...] = ()
    trial: Trial = field(default_factory=Trial)

    def method(self, params: ForecastParams) -> str:
        """The forecaster in use."""
        return self.trial.chosen if params.method == AUTO else params.method


def observe(
    state: ForecastState,
    *,
    observed_s: float,
    load: float,
    horizon_s: float,
    price: Price,
    params: ForecastParams,
) -> ForecastState:
    """The state after an observation of the load; the same report seen again changes nothing."""
    history = remember(
        state.history,
        observed_s,
        load,
        recent_s=params.recent_s,
        keep_s=params.history_s,
    )
    if history is state.history:
        return state
    state = _refit(replace(state, history=history), params)
    if params.method == AUTO and observed_s - state.trial.made_s >= STRIDE_S:
        state = _try_all(state, horizon_s=horizon_s, price=price, params=params)
    return state


def forecast(state: ForecastState, horizon_s: float, params: ForecastParams) -> float | None:
    """Predicted load at `horizon_s` after the newest point. None: nothing was ever observed.

    Where the method fails, the newest observation.
    """
    if not state.history.points:
        return None
    predicted = _predict(state, state.method(params), horizon_s)
    return state.history.newest if math.isnan(predicted) else predicted


def _predict(state: ForecastState, method: str, horizon_s: float) -> float:
    coefficients = next((item.coefficients for item in state.fits if item.method == method), ())
    return predict(method, state.history, horizon_s, coefficients)


def _refit(state: ForecastState, params: ForecastParams) -> ForecastState:
    now_s = state.history.newest_s
    fitted_s = {item.method: item.fitted_s for item in state.fits}
    due = [
        method
        for method in members(params.method)
        if is_fitted(method) and now_s - fitted_s.get(method, -math.inf) >= params.refit_s
    ]
    if not due:
        return state
    method = min(due, key=lambda name: fitted_s.get(name, -math.inf))
    coefficients = fit(method, state.history, season_s=params.season_s)
    others = (item for item in state.fits if item.method != method)
    new = Fit(method=method, fitted_s=now_s, coefficients=coefficients)
    return replace(state, fits=(*others, new))


def _try_all(
    state: ForecastState, *, horizon_s: float, price: Price, params: ForecastParams
) -> ForecastState:
    trial = judge(state.trial, state.history.points, price=price, keep_s=params.backtest_s)
    trial = choose(trial, margin=params.switch_margin)
    forecasts = {method: _predict(state, method, horizon_s) for method in members(AUTO)}
    trial = promise(
        trial, forecasts, now_s=state.history.newest_s, horizon_s=horizon_s, price=price
    )
    return replace(state, trial=trial)
