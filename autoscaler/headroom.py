"""How many replicas carry a forecast, with what must be free beside it?

| method | replicas for a forecast of f replicas kept busy |
|---|---|
| `share` | a share of each is free: f / u, at `target_utilisation` u |
| `learned` | a safety stock is free: f + stock, but at least f / `MOST_USED` |

A safety stock is inventory theory's (Arrow, Harris and Marschak 1951): what is asked for now comes
a cold start later, so the errors that forecasts had over a cold start, noise and jumps alike, say
how much must lie ready. It is their quantile `objective`, by their order: no distribution is
assumed. Errors are in replicas and not relative, for replicas short are what costs, and a pool that
is idle between bursts has no load to be relative to. Until there are enough errors for that
quantile (1 / (1 - objective), 50 minutes for 99 %) a share is free; nothing is promised before a
cold start's time of load is known.

Invariants: replicas are monotone in the forecast, and never fewer than it keeps busy; a stock is
finite and >= 0; where nothing was observed nothing is learned; the state is bounded, one error
every `STRIDE_S` of the last `memory_s`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from autoscaler.backtest import STRIDE_S
from autoscaler.history import Points, mean_between

SHARE, LEARNED = "share", "learned"

# Peaks shorter than this are carried by what engines have in flight.
PEAK_S = 15.0

# No replica is planned to be busier: its engine would have no time left for chance.
MOST_USED = 0.95


@dataclass(frozen=True, kw_only=True)
class HeadroomState:
    """What was learned of a pool, in replicas kept busy.

    `promises`: (due at, forecast), not due yet. `errors`: (time, actual less forecast), oldest
    first. `stock`: None while too little is known.
    """

    promises: Points = ()
    errors: Points = ()
    stock: float | None = None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The load's `points` up to now, and its `forecast` for `horizon_s` from now."""

    points: Points
    forecast: float
    horizon_s: float


def learn_nothing(
    state: HeadroomState,
    seen: Seen,  # noqa: ARG001
    *,
    objective: float,  # noqa: ARG001
    memory_s: float,  # noqa: ARG001
) -> HeadroomState:
    """As it was."""
    return state


def learn(state: HeadroomState, seen: Seen, *, objective: float, memory_s: float) -> HeadroomState:
    """The state after an observation: every `STRIDE_S` what is due is judged, and promised anew."""
    now_s = seen.points[-1][0]
    if seen.points[0][0] > now_s - seen.horizon_s:
        return state
    if state.promises and now_s < state.promises[-1][0] - seen.horizon_s + STRIDE_S:
        return state
    first = bisect_right(state.errors, now_s - memory_s, key=lambda error: error[0])
    errors = (*state.errors[first:], *_judged(state.promises, seen.points))
    waiting = (promise for promise in state.promises if promise[0] > now_s)
    return replace(
        state,
        promises=(*waiting, (now_s + seen.horizon_s, seen.forecast)),
        errors=errors,
        stock=_stock([error for _, error in errors], objective=objective),
    )


def share(state: HeadroomState, forecast: float, utilisation: float) -> float:  # noqa: ARG001
    """Replicas for a forecast, by the share that is planned for."""
    return forecast / utilisation


def stocked(state: HeadroomState, forecast: float, utilisation: float) -> float:
    """Replicas for a forecast, by the stock; by the share as long as there is none."""
    if state.stock is None:
        return share(state, forecast, utilisation)
    return max(forecast + state.stock, forecast / MOST_USED)


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """A method.

    `learn`: the state after an observation. `replicas(state, forecast, utilisation)`: how many
    carry a forecast, headroom included.
    """

    learn: Callable[..., HeadroomState]
    replicas: Callable[[HeadroomState, float, float], float]


HEADROOMS: Mapping[str, Headroom] = MappingProxyType(
    {
        SHARE: Headroom(learn=learn_nothing, replicas=share),
        LEARNED: Headroom(learn=learn, replicas=stocked),
    }
)


def _judged(promises: Points, points: Points) -> Points:
    """What forecasts that have come due were short by; nothing where nothing was observed."""
    found = []
    for due_s, forecast in promises:
        if due_s <= points[-1][0]:
            actual = mean_between(points, due_s - PEAK_S, due_s)
            if actual is not None:
                found.append((due_s, actual - forecast))
    return tuple(found)


def _stock(errors: list[float], *, objective: float) -> float | None:
    """The least error that a share `objective` does not exceed, >= 0; None for too few."""
    place = math.ceil(objective * (len(errors) + 1))
    return max(0.0, sorted(errors)[place - 1]) if place <= len(errors) else None
