"""How much load is there, and how many replicas does it need?

Load is counted in replicas that it keeps busy. A scaling policy says how many, of what arrives and
of what waits:

| policy | a request keeps a replica busy for |
|---|---|
| `engine_work` | its engine-seconds: prompt and output at their prices (`cluster.engine_work`) |
| `token_load` | its predicted tokens over the tokens/s of the plan's workload at its goodput |

They agree on the plan's own workload. What is needed is the larger of what arrivals need and what
is already inside needs:

    n = ceil( max( busy / u, in_flight_tokens / (u * C_flight) ) )

Tokens or time, not requests: output lengths differ by orders of magnitude, so a request count says
little about load. `autoscaler.scaling` applies delays, bounds and steps to every policy alike.

To add one: write the function, add its line to `SCALING_POLICIES`, name it in `ScalingParams`.

Invariants: zero demand (up to rounding) needs zero replicas, any other at least one; monotone in
both demands; a policy is additive over loads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from autoscaler.snapshot import LoadObservation

# Below this share of a replica a remainder is rounding, not load.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What one replica carries: predicted tokens/s of its plan's workload, and tokens in flight."""

    tokens_per_s: float
    in_flight_tokens: float


@dataclass(frozen=True, kw_only=True)
class Busy:
    """A load in replicas that work as planned: how many its arrivals keep busy, what waits.

    `arriving`: replicas. `queued_s`: seconds for which what waits would keep one of them busy.
    """

    arriving: float
    queued_s: float


ScalingPolicy = Callable[[LoadObservation, Capacity], Busy]


def engine_work(load: LoadObservation, replica: Capacity) -> Busy:
    """By the time that requests take."""
    del replica
    return Busy(arriving=load.arrival_work, queued_s=load.queued_work)


def token_load(load: LoadObservation, replica: Capacity) -> Busy:
    """By predicted tokens."""
    return Busy(
        arriving=load.arrival_tokens_per_s / replica.tokens_per_s,
        queued_s=load.queued_tokens / replica.tokens_per_s,
    )


SCALING_POLICIES: Mapping[str, ScalingPolicy] = MappingProxyType(
    {"engine_work": engine_work, "token_load": token_load}
)


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a pool has to carry, totals over the pool (never a mean per replica).

    `busy`: replicas that forecast arrivals keep busy, and those that drain the backlog in the time
    allowed. `in_flight_tokens`: predicted tokens dispatched or queued.
    """

    busy: float
    in_flight_tokens: float


def replicas_for(demand: Demand, replica: Capacity, *, utilisation: float) -> int:
    """Replicas that carry `demand` when each is used up to the fraction `utilisation`."""
    rate = demand.busy / utilisation
    flight = demand.in_flight_tokens / (utilisation * replica.in_flight_tokens)
    load = max(rate, flight)
    return math.ceil(load - _ROUNDING) if load > _ROUNDING else 0
