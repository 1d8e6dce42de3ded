"""How much load will arrive when a replica asked for now is ready?

A forecaster maps a history of (time_s, predicted tokens/s), oldest first, to predicted tokens/s
`horizon_s` after the newest point. The horizon is the pool's cold start plus one tick.

To add one: write the function, add its line to `FORECASTERS`, name it in `ForecastParams.method`.
Last value is the baseline every other one has to beat on replica-hours at equal SLO attainment.

Invariants: a forecast is finite and >= 0; a missing observation adds no point, so the forecast
holds; an observation of zero traffic is a point like any other.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

History = tuple[tuple[float, float], ...]


class Forecaster(Protocol):
    """Predicts tokens/s at `horizon_s` after the newest point. `history` is never empty."""

    def __call__(self, history: History, horizon_s: float) -> float: ...  # noqa: D102


def last_value(history: History, horizon_s: float) -> float:  # noqa: ARG001  the same at any horizon
    """The newest observation, at any horizon."""
    return history[-1][1]


FORECASTERS: Mapping[str, Forecaster] = MappingProxyType({"last_value": last_value})


def forecast(history: History, horizon_s: float, *, method: str) -> float | None:
    """Predicted tokens/s at `horizon_s`, clamped to >= 0. None: nothing was ever observed.

    A forecaster that answers NaN or an infinity is overruled by the last value. `method` is a key
    of `FORECASTERS` (checked by `ForecastParams`).
    """
    if not history:
        return None
    predicted = FORECASTERS[method](history, horizon_s)
    if not math.isfinite(predicted):
        predicted = last_value(history, horizon_s)
    return max(0.0, predicted)


def remember(history: History, time_s: float, tokens_per_s: float, *, keep_s: float) -> History:
    """`history` with one more point, without what is older than `keep_s` before it.

    A point not newer than the last one is the same report seen again, and changes nothing.
    """
    if history and time_s <= history[-1][0]:
        return history
    first = bisect_left(history, -keep_s, key=lambda point: point[0] - time_s)
    return (*history[first:], (time_s, tokens_per_s))
