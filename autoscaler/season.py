"""Does the load repeat itself, and after how long?

The season is the lag at which the autocorrelation of the load peaks (Box and Jenkins 1970), looked
for in means of ten minutes.
"""

from __future__ import annotations

import math

import numpy as np

from autoscaler.history import MINUTE_S, Floats

SHORTEST_SEASON_S = 3600.0

_BLOCK_MINUTES = 10
# Autocorrelation below this is no season.
_LEAST_CORRELATION = 0.5
# A peak that reaches this share of the highest one is as good as it.
_AS_HIGH = 0.9


def find_season_s(minutes: Floats) -> float:
    """The season in a grid of minutes (NaN where unknown), seconds; 0 if it shows none.

    It must be in the grid at least twice, and each multiple of it that is must correlate too: a
    random walk has peaks as well.
    """
    shortest = round(SHORTEST_SEASON_S / MINUTE_S) // _BLOCK_MINUTES
    series = _deviations(minutes)
    if series.size < 2 * shortest or not np.any(series):
        return 0.0
    correlation = _autocorrelation(series, lags=series.size // 2 + 1)
    inner = correlation[1:-1]
    peaks = 1 + np.flatnonzero((inner >= correlation[:-2]) & (inner > correlation[2:]))
    seasons = [
        int(peak)
        for peak in peaks
        if peak >= shortest and np.all(correlation[peak::peak] >= _LEAST_CORRELATION)
    ]
    if not seasons:
        return 0.0
    # Twice a season correlates as well as one: the first peak that is about as high as any.
    high = _AS_HIGH * max(correlation[season] for season in seasons)
    first = next(season for season in seasons if correlation[season] >= high)
    return first * _BLOCK_MINUTES * MINUTE_S


def _deviations(minutes: Floats) -> Floats:
    """Means of the last whole blocks less the mean of all; 0 where nothing is known."""
    size = minutes.size // _BLOCK_MINUTES
    blocks = minutes[minutes.size - size * _BLOCK_MINUTES :].reshape(size, _BLOCK_MINUTES)
    known = ~np.isnan(blocks)
    counts = known.sum(axis=1)
    if not counts.any():
        return np.zeros(size)
    means = np.where(known, blocks, 0.0).sum(axis=1) / np.maximum(counts, 1)
    return np.where(counts > 0, means - means[counts > 0].mean(), 0.0)


def _autocorrelation(series: Floats, *, lags: int) -> Floats:
    """Correlation of the series with itself `0..lags` steps later, over the part that overlaps."""
    found = np.ones(lags + 1)
    for lag in range(1, min(lags, series.size - 2) + 1):
        early, late = series[:-lag], series[lag:]
        scale = math.sqrt(float(early @ early) * float(late @ late))
        found[lag] = float(early @ late) / scale if scale > 0.0 else 0.0
    return found
