"""What has been observed of a pool's load, in bounded memory?

Two resolutions: `points` as observed for the last half hour or so, which the forecasters of the
next minutes look at, and `minutes`, means of whole minutes for days, in which a season shows.

Invariants: a gap is a gap, in `points` and in `minutes` alike, and never read as zero; zero
traffic is a point like any other; the same observations give the same history.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

MINUTE_S = 60.0

Points = tuple[tuple[float, float], ...]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class History:
    """Load that arrived at one pool, oldest first, in the unit it is observed in.

    `points`: (time in s, load in replicas that it keeps busy). `minutes`: (number of the minute
    since time 0, mean load of its points), closed minutes with at least one point. `open_sum`,
    `open_points`: of the minute of the newest point, which is not closed.
    """

    points: Points = ()
    minutes: tuple[tuple[int, float], ...] = ()
    open_sum: float = 0.0
    open_points: int = 0

    @property
    def newest_s(self) -> float:
        """Time of the newest point. Raises IndexError where nothing was observed."""
        return self.points[-1][0]

    @property
    def newest(self) -> float:
        """Load of the newest point. Raises IndexError where nothing was observed."""
        return self.points[-1][1]


def remember(
    history: History, time_s: float, load: float, *, recent_s: float, keep_s: float
) -> History:
    """`history` with one more point.

    Without points older than `recent_s` before it, and minutes older than `keep_s`. A point not
    newer than the last one is the same report seen again, and changes nothing.
    """
    if history.points and time_s <= history.newest_s:
        return history
    first = bisect_left(history.points, -recent_s, key=lambda point: point[0] - time_s)
    points = (*history.points[first:], (time_s, load))
    minute = math.floor(time_s / MINUTE_S)
    before = math.floor(history.newest_s / MINUTE_S) if history.points else minute
    if minute == before:
        return replace(
            history,
            points=points,
            open_sum=history.open_sum + load,
            open_points=history.open_points + 1,
        )
    oldest = bisect_left(history.minutes, minute - keep_s / MINUTE_S, key=lambda row: row[0])
    closed = (before, history.open_sum / history.open_points)
    return History(
        points=points,
        minutes=(*history.minutes[oldest:], closed),
        open_sum=load,
        open_points=1,
    )


def values_since(points: Points, since_s: float) -> list[float]:
    """Values of the points from `since_s` on, oldest first."""
    return [value for _, value in points[bisect_left(points, since_s, key=_time_s) :]]


def _time_s(point: tuple[float, float]) -> float:
    return point[0]


def mean_between(points: Points, from_s: float, to_s: float) -> float | None:
    """Mean of the points in (from_s, to_s], None if there is none."""
    first = bisect_right(points, from_s, key=_time_s)
    last = bisect_right(points, to_s, key=_time_s)
    values = [value for _, value in points[first:last]]
    return sum(values) / len(values) if values else None


def recent_grid(history: History, *, step_s: float) -> Floats:
    """Means over steps of `step_s` that end at the newest point, oldest first, never empty.

    A step without a point has the mean of the one before it: missing data holds.
    """
    flat = np.fromiter(chain.from_iterable(history.points), np.float64)
    table = flat.reshape(-1, 2)
    ages = (table[-1, 0] - table[:, 0]) / step_s
    steps = ages.astype(np.int64)
    size = int(steps[0]) + 1
    sums = np.bincount(steps, weights=table[:, 1], minlength=size)
    counts = np.bincount(steps, minlength=size)
    means = np.divide(sums, counts, out=np.full(size, np.nan), where=counts > 0)
    return held(means[::-1])


def minute_grid(history: History) -> tuple[int, Floats]:
    """(number of the first minute, means of all minutes since), NaN where one has no point."""
    if not history.minutes:
        return 0, np.empty(0)
    rows = np.array(history.minutes, dtype=np.float64)
    numbers = rows[:, 0].astype(np.int64)
    first = int(numbers[0])
    grid = np.full(int(numbers[-1]) - first + 1, np.nan)
    grid[numbers - first] = rows[:, 1]
    return first, grid


def held(values: Floats) -> Floats:
    """`values` with every NaN replaced by the last number before it; the first is a number."""
    known = np.where(np.isnan(values), 0, np.arange(values.size))
    return np.asarray(values[np.maximum.accumulate(known)], dtype=np.float64)
