"""How many replicas does a load need?

A scaling policy maps (demand, capacity of one replica, utilisation allowed) to replicas. It knows
no delays, bounds or steps: `autoscaler.scaling` applies those to every policy alike.

`token_load`, the built-in one:

    n = ceil( max( tokens_per_s / (u * C_rate), in_flight_tokens / (u * C_flight) ) )

the larger of what the arrivals need and what is already inside needs. Tokens, not requests:
output lengths differ by orders of magnitude, so a request count says little about load.

To add one: write the function, add its line to `SCALING_POLICIES`, name it in `ScalingParams`.

Invariants: zero demand (up to rounding) needs zero replicas, any other at least one; monotone in
both demands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

# Below this share of a replica a remainder is rounding, not load.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a pool has to carry, totals over the pool (never a mean per replica).

    `tokens_per_s`: forecast arrivals plus the rate that drains the backlog in the time allowed.
    `in_flight_tokens`: predicted tokens dispatched or queued.
    """

    tokens_per_s: float
    in_flight_tokens: float


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What one replica carries: predicted tokens/s, and predicted tokens in flight."""

    tokens_per_s: float
    in_flight_tokens: float


class ScalingPolicy(Protocol):
    """Replicas that carry `demand` when each is used up to the fraction `utilisation`."""

    def __call__(self, demand: Demand, replica: Capacity, *, utilisation: float) -> int: ...  # noqa: D102


def token_load(demand: Demand, replica: Capacity, *, utilisation: float) -> int:
    """Replicas for the token load (formula in the module's docstring)."""
    rate = demand.tokens_per_s / (utilisation * replica.tokens_per_s)
    flight = demand.in_flight_tokens / (utilisation * replica.in_flight_tokens)
    load = max(rate, flight)
    return math.ceil(load - _ROUNDING) if load > _ROUNDING else 0


SCALING_POLICIES: Mapping[str, ScalingPolicy] = MappingProxyType({"token_load": token_load})
