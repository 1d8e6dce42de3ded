"""Which forecasts of the near future need no coefficients?"""

from __future__ import annotations

import math

from autoscaler.forecaster import Coefficients
from autoscaler.history import History

HALF_LIFE_S = 30.0

# Points older than this many half-lives weigh less than a thousandth of the newest.
_HALF_LIVES = 10.0


def last_value(history: History, horizon_s: float, coefficients: Coefficients) -> float:  # noqa: ARG001
    """The newest observation, at any horizon."""
    return history.newest


def ewma(history: History, horizon_s: float, coefficients: Coefficients) -> float:  # noqa: ARG001
    """The mean in which a point's weight halves every `HALF_LIFE_S`, at any horizon."""
    return smoothed(history)


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
