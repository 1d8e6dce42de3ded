"""How much load will arrive when a replica asked for now is ready?

`FORECASTERS` predict the load `horizon_s` after the newest point of a pool's history; the horizon
is the pool's cold start plus one tick. Last value is the baseline every other one has to beat on
replica-hours at equal SLO attainment; `auto` chooses among all of them by what they would have
cost (`autoscaler.backtest`).

To add one: write the function, or a module with `fit` and `predict`, and add its line here.

Invariants: a forecast is finite and >= 0; a missing observation adds no point, so the forecast
holds; an observation of zero traffic is a point like any other; a forecaster that raises or
answers what is no number is overruled by the last value, and its loss is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from autoscaler import arima, fitting, holt_winters, seasonal
from autoscaler.forecaster import Coefficients, Forecaster
from autoscaler.history import History
from autoscaler.smoothing import ewma, ewma_or_burst, last_value

LAST_VALUE, EWMA_OR_BURST = "last_value", "ewma_or_burst"
AUTO = "auto"

FORECASTERS: Mapping[str, Forecaster] = MappingProxyType(
    {
        LAST_VALUE: Forecaster(predict=last_value),
        "ewma": Forecaster(predict=ewma),
        EWMA_OR_BURST: Forecaster(predict=ewma_or_burst),
        "holt_winters": Forecaster(
            predict=holt_winters.predict, fit=holt_winters.fit, uses_library=True
        ),
        "arima": Forecaster(predict=arima.predict, fit=arima.fit, uses_library=True),
        "seasonal": Forecaster(predict=seasonal.predict, fit=seasonal.fit),
    }
)


def methods() -> tuple[str, ...]:
    """What `ForecastParams.method` may be."""
    return (*FORECASTERS, AUTO)


def members(method: str) -> tuple[str, ...]:
    """The forecasters that `method` runs."""
    return tuple(FORECASTERS) if method == AUTO else (method,)


def is_fitted(method: str) -> bool:
    """Whether a forecaster has coefficients to estimate."""
    return FORECASTERS[method].fit is not None


def prepare(method: str) -> None:
    """Import what the fits of `method` need, which takes seconds, so that no step has to."""
    if any(FORECASTERS[member].uses_library for member in members(method)):
        fitting.load_library()


def fit(method: str, history: History, *, season_s: float) -> Coefficients | None:
    """Coefficients of `method`, a key of `FORECASTERS`; None if its fit failed."""
    estimate = FORECASTERS[method].fit
    if estimate is None:
        return ()
    try:
        found = estimate(history, season_s)
    except Exception:
        return None
    return found if all(math.isfinite(value) for value in found) else None


def predict(
    method: str, history: History, horizon_s: float, coefficients: Coefficients | None
) -> float:
    """Load >= 0 at `horizon_s`; NaN if `method` fails or its fit did (coefficients None)."""
    if coefficients is None:
        return math.nan
    try:
        found = FORECASTERS[method].predict(history, horizon_s, coefficients)
    except Exception:
        return math.nan
    return max(0.0, found) if math.isfinite(found) else math.nan
