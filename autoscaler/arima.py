"""What does ARIMA(1, 1, 1) say of the next minutes?

On changes w of the load from one step of `STEP_S` to the next (Box and Jenkins 1970):

    w = phi w' + e + theta e'

The coefficients are fitted; innovations e follow from them and the newest points, every tick anew.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from autoscaler import fitting
from autoscaler.forecaster import DIGITS, Coefficients
from autoscaler.history import History, recent_grid
from autoscaler.holt_winters import LEAST_STEPS, STEP_S, within_reach


def fit(history: History, season_s: float) -> Coefficients:  # noqa: ARG001  no season here
    """(phi, theta); nothing for too short a history or one without any change."""
    grid = recent_grid(history, step_s=STEP_S)
    if grid.size < LEAST_STEPS or np.ptp(grid) == 0.0:
        return ()
    phi, theta = fitting.arima_1_1_1(grid / np.mean(grid))
    return round(phi, DIGITS), round(theta, DIGITS)


def predict(history: History, horizon_s: float, coefficients: Coefficients) -> float:
    """The expected load; the newest point as long as there are no coefficients."""
    if not coefficients:
        return history.newest
    phi, theta = coefficients
    grid = recent_grid(history, step_s=STEP_S)
    change = innovation = 0.0
    for before, change in pairwise([0.0, *np.diff(grid).tolist()]):
        innovation = change - phi * before - theta * innovation
    steps = max(1, math.ceil(horizon_s / STEP_S))
    first = phi * change + theta * innovation
    return within_reach(float(grid[-1] + first * np.sum(phi ** np.arange(steps))), grid)
