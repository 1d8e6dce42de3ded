"""Does a replica's memory grow without end?

A leak is growth that goes on over a whole window after the warm-up: the Theil-Sen slope (Sen,
"Estimates of the regression coefficient based on Kendall's tau", 1968: the median of the slopes of
all pairs) is at or above the limit, and each third of the window has risen over the one before by
at least half of what the limit asks for, the last not much less than the second. A cache that fills
up, a step, or noise around a level fails the latter. Or a ceiling is crossed for a while.

Invariants: measurements within a band of 0.15 * limit * window never are growth; what nobody has
measured (NaN) is no measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median, median_low

from autoscaler.guards import held, since
from autoscaler.leak_params import LeakParams
from autoscaler.snapshot import ReplicaObservation

Point = tuple[float, float]  # time in seconds, bytes

_POINTS = 48  # of a full window: sixteen to a third, a thousand slopes in all
_HOUR_S = 3600.0
# A window counts as full a little early: points are not exactly as far apart as they should be.
_FULL = 0.9
# Growth that falls to less than this from one third to the next is coming to its end.
_SLOWING = 0.6


@dataclass(frozen=True, kw_only=True)
class Series:
    """One kind of memory of one replica: points over the window, the last value, its ceiling.

    `under`: it was below its ceiling once after the warm-up; a ceiling that is lower than what a
    replica needs would replace one after another for nothing. `over_since_s`: above since then.
    """

    points: tuple[Point, ...] = ()
    last: float = math.nan
    under: bool = False
    over_since_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Track:
    """What is remembered of a replica's memory. `first_s`: when it was first seen."""

    replica_id: str
    first_s: float
    host: Series = Series()
    device: Series = Series()


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A replica to be replaced: why in words, and the numbers. `urgent`: its ceiling is near."""

    replica_id: str
    reason: str
    numbers: tuple[tuple[str, float], ...]
    urgent: bool


def note(
    tracks: Iterable[Track],
    replicas: Iterable[ReplicaObservation],
    *,
    now_s: float,
    params: LeakParams,
) -> tuple[Track, ...]:
    """The tracks with what is seen of the replicas now. Those that are gone are forgotten."""
    known = {track.replica_id: track for track in tracks}
    return tuple(
        _noted(
            known.get(seen.replica_id, Track(replica_id=seen.replica_id, first_s=now_s)),
            seen,
            now_s=now_s,
            params=params,
        )
        for seen in replicas
    )


def worst_leak(tracks: Iterable[Track], *, now_s: float, params: LeakParams) -> Leak | None:
    """The leak to deal with first: an urgent one, of several the fastest; None if none leaks."""
    found = [
        leak
        for track in tracks
        for leak in (
            _leak(track.replica_id, "host", track.host, now_s=now_s, params=params),
            _leak(track.replica_id, "device", track.device, now_s=now_s, params=params),
        )
        if leak is not None
    ]
    return max(found, key=_weight, default=None)


def slope(points: tuple[Point, ...]) -> float:
    """Bytes per second by Theil and Sen; 0 for fewer than two points."""
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for earlier, later in combinations(points, 2)
    ]
    return median(slopes) if slopes else 0.0


def _noted(track: Track, seen: ReplicaObservation, *, now_s: float, params: LeakParams) -> Track:
    if now_s - track.first_s < params.warmup_s:
        return track
    return replace(
        track,
        host=_add(track.host, "host", seen.host_bytes, now_s=now_s, params=params),
        device=_add(track.device, "device", seen.device_bytes, now_s=now_s, params=params),
    )


def _add(series: Series, kind: str, value: float, *, now_s: float, params: LeakParams) -> Series:
    if not math.isfinite(value):
        return series
    ceiling = params.ceiling_bytes(kind)
    over = ceiling is not None and value >= ceiling
    series = replace(
        series,
        last=value,
        under=series.under or not over,
        over_since_s=since(series.over_since_s, holds=over, now_s=now_s),
    )
    if series.points and now_s - series.points[-1][0] < params.window_s / _POINTS:
        return series
    kept = tuple(point for point in series.points if now_s - point[0] <= params.window_s)
    return replace(series, points=(*kept, (now_s, value)))


def _leak(
    replica_id: str, kind: str, series: Series, *, now_s: float, params: LeakParams
) -> Leak | None:
    ceiling = params.ceiling_bytes(kind)
    over = series.under and held(series.over_since_s, params.over_s, now_s=now_s)
    growing = _grows(series.points, params=params)
    if not series.points or not (over or growing):
        return None
    first_s, first = series.points[0]
    last = series.last
    numbers = {"bytes": last, "growth_bytes": last - first, "window_s": now_s - first_s}
    if growing:
        numbers["slope_bytes_per_h"] = slope(series.points) * _HOUR_S
    left_s = math.inf
    if ceiling is not None:
        numbers["ceiling_bytes"] = ceiling
        if growing:
            left_s = max(0.0, ceiling - last) / slope(series.points)
            numbers["to_ceiling_s"] = left_s
    return Leak(
        replica_id=replica_id,
        reason=_words(kind, numbers, over=over),
        numbers=tuple(sorted(numbers.items())),
        urgent=over or left_s <= params.urgent_s,
    )


def _grows(points: tuple[Point, ...], *, params: LeakParams) -> bool:
    """Whether a full window rises from third to third, and as fast as the limit."""
    if len(points) < _POINTS // 4 or points[-1][0] - points[0][0] < _FULL * params.window_s:
        return False
    start_s, third_s = points[0][0], (points[-1][0] - points[0][0]) / 3.0
    thirds: list[list[float]] = [[], [], []]
    for time_s, value in points:
        thirds[min(2, int((time_s - start_s) / third_s))].append(value)
    if not all(thirds):
        return False
    limit = params.slope_bytes_per_h / _HOUR_S
    low, middle, high = (median_low(values) for values in thirds)  # a step is in one third alone
    earlier, later = middle - low, high - middle
    steady = min(earlier, later) >= 0.5 * limit * third_s and later >= _SLOWING * earlier
    return steady and slope(points) >= limit


def _words(kind: str, numbers: dict[str, float], *, over: bool) -> str:
    if over:
        return (
            f"its {kind} memory, {_size(numbers['bytes'])}, is above the ceiling of "
            f"{_size(numbers['ceiling_bytes'])}"
        )
    gained = _size(numbers["growth_bytes"])
    text = f"its {kind} memory grew by {gained} in {numbers['window_s'] / 60.0:.3g} min"
    if "to_ceiling_s" in numbers:
        text += f", {numbers['to_ceiling_s'] / 60.0:.3g} min from its ceiling"
    return text


def _size(amount: float) -> str:
    return f"{amount / 2**30:.3g} GiB" if abs(amount) >= 2**30 else f"{amount / 2**20:.3g} MiB"


def _weight(leak: Leak) -> tuple[bool, float, str]:
    return leak.urgent, dict(leak.numbers).get("slope_bytes_per_h", math.inf), leak.replica_id
