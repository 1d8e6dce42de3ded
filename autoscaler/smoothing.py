"""Which forecasts of the near future need no coefficients?"""

from __future__ import annotations

import math
import statistics

from autoscaler.forecaster import Coefficients
from autoscaler.history import History, values_since

HALF_LIFE_S = 30.0

# A burst is further above the mean than this many deviations of what is usual.
BURST = 4.0

# What is usual is learnt from points of the last ten minutes.
_USUAL_S = 600.0

# Of a normal distribution: standard over median absolute deviation.
_NORMAL = 1.4826

# Points older than this many half-lives weigh less than a thousandth of the newest.
_HALF_LIVES = 10.0


def last_value(history: History, horizon_s: float, coefficients: Coefficients) -> float:  # noqa: ARG001
    """The newest observation, at any horizon."""
    return history.newest


def ewma(history: History, horizon_s: float, coefficients: Coefficients) -> float:  # noqa: ARG001
    """The mean in which a point's weight halves every `HALF_LIFE_S`, at any horizon.

    After a half-life of silence it is 0: no pool shall be kept for the tail of a mean.
    """
    heard = any(values_since(history.points, history.newest_s - HALF_LIFE_S))
    return smoothed(history) if heard else 0.0


def ewma_or_burst(history: History, horizon_s: float, coefficients: Coefficients) -> float:
    """The weighted mean as long as the load is about it, the newest observation in a burst.

    A mean is late for what begins suddenly, and the last value takes each chance peak for a rise.
    A burst is where the newest point is above the mean by more than `BURST` deviations, robustly
    estimated (median absolute deviation, Hampel 1974), so that earlier bursts do not hide the next.
    """
    mean = ewma(history, horizon_s, coefficients)
    usual = values_since(history.points, history.newest_s - _USUAL_S)
    middle = statistics.median(usual)
    deviation = _NORMAL * statistics.median(abs(value - middle) for value in usual)
    return history.newest if history.newest > mean + BURST * deviation else mean


def smoothed(history: History) -> float:
    """Exponentially weighted mean of the newest points, by their times: gaps weigh nothing."""
    newest_s = history.newest_s
    weights = values = 0.0
    for time_s, value in reversed(history.points):
        half_lives = (newest_s - time_s) / HALF_LIFE_S
        if half_lives > _HALF_LIVES:
            break
        weight = math.exp2(-half_lives)
        weights += weight
        values += weight * value
    return values / weights
