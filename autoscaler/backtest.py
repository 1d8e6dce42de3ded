"""Which forecaster would have cost the least?

Every `STRIDE_S` each forecaster says what will arrive at the horizon, with the coefficients it had
then; when that time has come, it is judged by what did arrive (a rolling origin, nothing of the
future known, the pool's own horizon). The judgement is what a pool steered by it would have cost,
not how far off it was:

    wanted = clamp(ceil(forecast / (utilisation * capacity)), minimum, maximum)
    paid   = most that was wanted in the last down delay     (replicas go later than they come)
    loss   = paid + weight * max(0, actual / capacity - paid)         replicas

With a weight of 100 a replica more is worth its price where the pool would else be short for more
than 1 % of the time: the newsvendor's quantile, for an attainment of 99 %.

Invariants: a forecast that failed has infinite loss; where nothing was observed nothing is judged;
last value is always a candidate, wins ties, and stays unless another is cheaper by the margin; a
choice holds until it is no better than last value, or another is cheaper by the margin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoscaler.forecast import LAST_VALUE
from autoscaler.guards import clamp
from autoscaler.history import Points, mean_between

STRIDE_S = 30.0
# Fewer judgements than this (ten minutes) choose nothing.
LEAST_JUDGED = 20


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a forecast is turned into: replicas of one pool, and what they cost.

    `capacity`: load that a replica carries. `utilisation`: of it that is planned for. `hold_s`: for
    how long a replica stays that is no longer wanted. `shortage_weight`: see the module.
    """

    capacity: float
    utilisation: float
    minimum: int
    maximum: int
    hold_s: float
    shortage_weight: float

    def wanted(self, forecast: float) -> float:
        """Replicas for a forecast of the load; NaN for NaN."""
        if math.isnan(forecast):
            return math.nan
        need = math.ceil(forecast / (self.utilisation * self.capacity))
        return float(clamp(need, minimum=self.minimum, maximum=self.maximum))

    def loss(self, paid: float, actual: float) -> float:
        """Replicas paid for and the weighted shortage of replicas under an `actual` load."""
        short = max(0.0, actual / self.capacity - paid)
        return paid + self.shortage_weight * short


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What each forecaster asked for at `made_s`, for `due_s`, in replicas; see the module."""

    made_s: float
    due_s: float
    wanted: Mapping[str, float]
    paid: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The judged past of a pool's forecasters, oldest first, and which of them is in use."""

    promises: tuple[Promise, ...] = ()
    losses: tuple[tuple[float, Mapping[str, float]], ...] = ()
    chosen: str = LAST_VALUE

    @property
    def made_s(self) -> float:
        """When the newest promise was made."""
        return self.promises[-1].made_s if self.promises else -math.inf

    def costs(self) -> dict[str, float]:
        """Loss of each forecaster, summed; empty as long as nothing was judged."""
        if not self.losses:
            return {}
        return {
            method: sum(losses[method] for _, losses in self.losses)
            for method in self.losses[-1][1]
        }


def promise(
    trial: Trial, forecasts: Mapping[str, float], *, now_s: float, horizon_s: float, price: Price
) -> Trial:
    """`trial` with what each forecaster says now; NaN: it failed."""
    wanted = {method: price.wanted(value) for method, value in forecasts.items()}
    held = [item.wanted for item in trial.promises if item.made_s > now_s - price.hold_s]
    paid = {
        method: math.inf
        if math.isnan(now)
        else max([now, *(past[method] for past in held if not math.isnan(past[method]))])
        for method, now in wanted.items()
    }
    made = Promise(made_s=now_s, due_s=now_s + horizon_s, wanted=wanted, paid=paid)
    return replace(trial, promises=(*trial.promises, made))


def judge(trial: Trial, points: Points, *, price: Price, keep_s: float) -> Trial:
    """`trial` with the promises that have come due judged by `points`, of the last `keep_s`."""
    now_s = points[-1][0]
    judged_s = trial.losses[-1][0] if trial.losses else -math.inf
    losses = [row for row in trial.losses if row[0] > now_s - keep_s]
    for item in trial.promises:
        if not judged_s < item.due_s <= now_s:
            continue
        actual = mean_between(points, item.due_s - STRIDE_S, item.due_s)
        if actual is not None:
            row = {method: price.loss(paid, actual) for method, paid in item.paid.items()}
            losses.append((item.due_s, row))
    promises = tuple(
        item
        for item in trial.promises
        if item.due_s > now_s or item.made_s > now_s - max(price.hold_s, STRIDE_S)
    )
    return replace(trial, promises=promises, losses=tuple(losses))


def choose(trial: Trial, *, margin: float) -> Trial:
    """`trial` with the forecaster that is in use from now on."""
    if len(trial.losses) < LEAST_JUDGED:
        return trial
    costs = trial.costs()
    chosen = trial.chosen
    if not costs[chosen] < costs[LAST_VALUE]:
        chosen = LAST_VALUE
    best = min(costs, key=costs.__getitem__)
    if costs[best] < (1.0 - margin) * costs[chosen]:
        chosen = best
    return replace(trial, chosen=chosen)
