"""Where does the trend of the last half hour lead?

Exponential smoothing of level l and trend b with damping phi (Holt 1957, Winters 1960, Gardner
and McKenzie 1985), on steps of `STEP_S`:

    e = y - (l + phi b);   l <- l + phi b + alpha e;   b <- phi b + alpha beta* e
    forecast after h steps = l + b (phi + phi^2 + ... + phi^h)

Without a season: days of it are `autoscaler.seasonal`'s, on another grid. The coefficients are
fitted, the recursion over the newest points is done anew every tick.
"""

from __future__ import annotations

import numpy as np

from autoscaler import fitting
from autoscaler.forecaster import DIGITS, Coefficients
from autoscaler.history import Floats, History, recent_grid

STEP_S = 10.0
# Fewer steps than this (5 minutes) say nothing of a trend.
LEAST_STEPS = 30
_REACH = 2.0


def fit(history: History, season_s: float) -> Coefficients:  # noqa: ARG001  no season here
    """(alpha, beta, phi); nothing for too short a history or one without any change."""
    grid = recent_grid(history, step_s=STEP_S)
    if grid.size < LEAST_STEPS or np.ptp(grid) == 0.0:
        return ()
    alpha, beta, phi = fitting.damped_trend(grid / np.mean(grid))
    return round(alpha, DIGITS), round(beta, DIGITS), round(phi, DIGITS)


def predict(history: History, horizon_s: float, coefficients: Coefficients) -> float:
    """The trend continued, damped; the newest point as long as there are no coefficients."""
    if not coefficients:
        return history.newest
    alpha, beta, phi = coefficients
    grid = recent_grid(history, step_s=STEP_S)
    level, trend = _smooth(grid, alpha, beta, phi)
    # A step's mean is of its middle: half a step more to the horizon.
    steps = horizon_s / STEP_S + 0.5
    return within_reach(level + trend * _damped_steps(phi, steps), grid)


def within_reach(predicted: float, grid: Floats) -> float:
    """`predicted`, at most `_REACH` times the highest of the grid: trends are short, lines long."""
    return min(predicted, _REACH * float(np.max(grid)))


def _smooth(grid: Floats, alpha: float, beta: float, phi: float) -> tuple[float, float]:
    values = grid.tolist()
    level, trend = values[0], 0.0
    for value in values[1:]:
        before = level + phi * trend
        error = value - before
        level = before + alpha * error
        trend = phi * trend + beta * error
    return level, trend


def _damped_steps(phi: float, steps: float) -> float:
    """Sum of phi + phi^2 + ... + phi^steps, for fractions of a step too."""
    if phi >= 1.0:
        return steps
    return float(phi * (1.0 - phi**steps) / (1.0 - phi))
