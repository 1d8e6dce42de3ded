"""Which hardware? One question planned on several clusters, an answer or a reason for each.

A cluster on which nothing fits is an outcome, not an error. For an expected rate R, a cluster needs
ceil(R / goodput of one replica) replicas, so the devices and USD per hour that it needs come in
whole replicas. Invariants: outcomes keep the order of the questions; the figures of an outcome are
those of its plan's chosen row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.errors import InfeasibleError
from rl_search.planner import PlanResult, RankedRow, make_plan
from rl_search.request import PlanRequest


@dataclass(frozen=True, kw_only=True)
class Need:
    """What serving a rate takes: `devices` may be more than the cluster has.

    `usd_per_hour` is None where the device has no price.
    """

    replicas: int
    devices: int
    usd_per_hour: float | None
    enough: bool


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A cluster's answer: a planning result, or the reason why there is none."""

    request: PlanRequest
    result: PlanResult | None
    reason: str = ""

    @property
    def name(self) -> str:
        """How the cluster was named."""
        return self.request.cluster_text or self.request.cluster.name

    @property
    def best(self) -> RankedRow | None:
        """The chosen layout, None where nothing fits."""
        return None if self.result is None else self.result.rows[0]

    @property
    def usd_per_million_tokens(self) -> float | None:
        """USD per million output tokens, None without a layout or a price."""
        row = self.best
        if row is None:
            return None
        cost = float(row.estimates.cost_per_million_tokens[row.index])
        return cost if math.isfinite(cost) else None

    def need(self) -> Need | None:
        """What the request's rate takes, None without a layout or a rate."""
        row, rate = self.best, self.request.workload.rate
        if self.result is None or row is None or rate is None:
            return None
        expected = self.result.plan.main.expected
        goodput = 0.0 if expected is None else expected.goodput_rps
        if goodput <= 0.0:
            return None
        # The quotient of a huge rate may be beyond what a whole number should be made of.
        replicas = max(1, math.ceil(min(rate / goodput, 1e12)))
        devices = replicas * row.layout.devices_per_replica
        price = row.group.device.price_per_hour
        return Need(
            replicas=replicas,
            devices=devices,
            usd_per_hour=None if price is None else price * devices,
            enough=replicas <= self.result.plan.main.replicas.maximum,
        )


def compare(requests: Sequence[PlanRequest]) -> tuple[Outcome, ...]:
    """Plan every request, in order.

    Raises InputError where a request contradicts its model; never because nothing fits.
    """
    return tuple(_outcome(request) for request in requests)


def cheapest(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The outcome with the least USD per million output tokens, None where none has a price."""
    return _least(outcomes, lambda outcome: outcome.usd_per_million_tokens)


def fastest(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The outcome with the least time per output token, None where nothing fits anywhere."""

    def tpot_s(outcome: Outcome) -> float | None:
        row = outcome.best
        return None if row is None else float(row.estimates.tpot_s[row.index])

    return _least(outcomes, tpot_s)


def cheapest_for_rate(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The outcome that serves the rate for the least USD per hour with the devices it has."""

    def usd(outcome: Outcome) -> float | None:
        need = outcome.need()
        return need.usd_per_hour if need is not None and need.enough else None

    return _least(outcomes, usd)


def _outcome(request: PlanRequest) -> Outcome:
    try:
        return Outcome(request=request, result=make_plan(request))
    except InfeasibleError as error:
        return Outcome(request=request, result=None, reason=str(error))


def _least(
    outcomes: Sequence[Outcome], value_of: Callable[[Outcome], float | None]
) -> Outcome | None:
    valued = [
        (value, outcome)
        for outcome in outcomes
        for value in [value_of(outcome)]
        if value is not None
    ]
    return min(valued, key=lambda entry: entry[0])[1] if valued else None
