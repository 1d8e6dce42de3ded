"""How is a quantity spread, in bounded memory? Counts in buckets that grow by one percent.

A value falls into bucket floor(log(x) / log(1.01)) and is read back as the bucket's middle, so a
quantile is within 0.5 % of a value that occurred (as in DDSketch, Masson et al. 2019). From 1 us to
a day there are about 2,500 buckets, however many values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

_GROWTH = 1.01
_PER_LOG = 1.0 / math.log(_GROWTH)
_SMALLEST = 1e-9
_SHIFT = 3000  # of bucket numbers: the smallest value's is above 0
_log = math.log


class Histogram:
    """Weighted counts of values >= 0."""

    __slots__ = ("_buckets", "count", "most", "total")

    def __init__(self) -> None:
        self._buckets: dict[int, float] = {}
        self.count = 0.0
        self.total = 0.0
        self.most = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        """Count `value`, `weight` times."""
        # Truncation is the floor, as logarithms are shifted to be positive.
        key = int(_log(value) * _PER_LOG + _SHIFT) if value > _SMALLEST else 0
        buckets = self._buckets
        buckets[key] = buckets.get(key, 0.0) + weight
        self.count += weight
        self.total += value * weight
        if value > self.most:  # noqa: PLR1730  max() is slower, and this is called per token run
            self.most = value

    def merge(self, other: Histogram) -> None:
        """Count all that `other` has counted."""
        for key, weight in other._buckets.items():
            self._buckets[key] = self._buckets.get(key, 0.0) + weight
        self.count += other.count
        self.total += other.total
        self.most = max(self.most, other.most)

    @property
    def mean(self) -> float:
        """The mean, NaN without values."""
        return self.total / self.count if self.count else math.nan

    def quantile(self, share: float) -> float:
        """The value that `share` of all are at or below, NaN without values."""
        if not self.count:
            return math.nan
        left = share * self.count
        for key in sorted(self._buckets):
            left -= self._buckets[key]
            if left <= 1e-9 * self.count:
                middle = math.exp((key + 0.5 - _SHIFT) / _PER_LOG)
                return min(middle, self.most) if middle > 2.0 * _SMALLEST else 0.0
        return self.most

    def curve(self, points: int) -> list[tuple[float, float]]:
        """(value, share at or below) for drawing, at most `points` of them."""
        keys = sorted(self._buckets)
        found, below = [], 0.0
        every = max(1, len(keys) // points)
        for index, key in enumerate(keys):
            below += self._buckets[key]
            if index % every == 0 or index == len(keys) - 1:
                found.append((math.exp((key + 0.5 - _SHIFT) / _PER_LOG), below / self.count))
        return found


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """All that several have counted, as one."""
    whole = Histogram()
    for histogram in histograms:
        whole.merge(histogram)
    return whole
