"""How are the coefficients of Holt's trend and of ARIMA estimated? By statsmodels.

The one module that knows the library. It takes seconds to import, so it is imported by the first
fit, or before by `load_library`. What it warns of (no convergence, parameters at their bound) is
no news to anybody: the back-test and the guards of `autoscaler.forecast` judge the forecasts.
"""

from __future__ import annotations

import warnings

from autoscaler.history import Floats


def load_library() -> None:
    """Import the library now, so that the first fit does not take seconds."""
    import statsmodels.tsa.arima.model
    import statsmodels.tsa.holtwinters  # noqa: F401


def damped_trend(values: Floats) -> tuple[float, float, float]:
    """(level, trend, damping) coefficients of Holt's method with damped trend, least squares."""
    from statsmodels.tsa.holtwinters import Holt

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = Holt(values, damped_trend=True, initialization_method="estimated").fit().params
    return (
        float(found["smoothing_level"]),
        float(found["smoothing_trend"]),
        float(found["damping_trend"]),
    )


def arima_1_1_1(values: Floats) -> tuple[float, float]:
    """(phi, theta) of ARIMA(1, 1, 1) without drift, maximum likelihood by innovations."""
    from statsmodels.tsa.arima.model import ARIMA

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ARIMA(values, order=(1, 1, 1)).fit(method="innovations_mle").params
    return float(found[0]), float(found[1])
