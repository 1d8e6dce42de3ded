"""What did the load do at this time of the season before?

    forecast = level + mean over the seasons k before of load(now + horizon - k S) - load(now - k S)

The level is exponentially smoothed, the load before is of minutes, smoothed. So a day that is
busier than others as a whole is met: the season S, set or found, says only how the load will
change.
"""

from __future__ import annotations

import math

import numpy as np

from autoscaler.forecaster import Coefficients
from autoscaler.history import MINUTE_S, Floats, History, held, minute_grid
from autoscaler.season import find_season_s
from autoscaler.smoothing import smoothed

# The load before is a mean over this many minutes around each.
_SMOOTH_MINUTES = 5


def fit(history: History, season_s: float) -> Coefficients:
    """Season in minutes, number of the first minute, and the smoothed load of each minute since.

    Nothing as long as no season is known or the history is shorter than one.
    """
    first, grid = minute_grid(history)
    season = round((season_s or find_season_s(grid)) / MINUTE_S)
    if season < 1 or grid.size < season:
        return ()
    return (float(season), float(first), *np.round(_smoothed_minutes(grid), 3).tolist())


def predict(history: History, horizon_s: float, coefficients: Coefficients) -> float:
    """The level and the change that the season brings; the newest point without a season."""
    if not coefficients:
        return history.newest
    season, first, *minutes = coefficients
    ahead = (horizon_s / MINUTE_S) % season
    # A minute's mean is of its middle.
    now = history.newest_s / MINUTE_S - 0.5 - first
    seasons = math.floor(now / season)
    changes = [
        _at(minutes, now + ahead - k * season) - _at(minutes, now - k * season)
        for k in range(1, seasons + 1)
    ]
    return smoothed(history) + (sum(changes) / seasons if seasons else 0.0)


def _smoothed_minutes(grid: Floats) -> Floats:
    known = ~np.isnan(grid)
    window = np.ones(_SMOOTH_MINUTES)
    sums = np.convolve(np.where(known, grid, 0.0), window, mode="same")
    counts = np.convolve(known, window, mode="same")
    return held(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))


def _at(minutes: list[float], position: float) -> float:
    """The load between the middles of two minutes, by a straight line; held beyond both ends."""
    position = min(max(position, 0.0), len(minutes) - 1.0)
    whole = math.floor(position)
    later = minutes[min(whole + 1, len(minutes) - 1)]
    return minutes[whole] + (position - whole) * (later - minutes[whole])
