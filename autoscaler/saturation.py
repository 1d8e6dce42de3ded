"""How full is a pool, and could more replicas still help in time?

    saturation = max( (in_flight + queued tokens) / (ready * C_flight), oldest_wait / limit )

1.0 = full. Memoryless: the hysteresis over it is in `autoscaler.degradation`.

The gate says whether saturation may raise the tier. Scaling comes first, so it is open only if
(1) the pool is at its ceiling: target at the maximum and nothing pending; or
(2) help comes too late: a request already waits longer than the limit; or
(3) help is not coming: replicas have been pending for longer than `overdue_factor` cold starts.

Without a ready replica requests wait for a start, not because of load: then capacity counts as
one replica's and waiting not at all, until the start is overdue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoscaler.params import TierParams
from autoscaler.view import PoolView


@dataclass(frozen=True, kw_only=True)
class Pressure:
    """One pool's fullness. `gate` says why the tier may rise for it, empty if it may not.

    `arriving`, `capacity`: replicas that arrivals keep busy, and those that are ready, both as
    planned. `arrival_tokens_per_s`: of arrivals. `replica_tokens_per_s`: of a replica as planned.
    """

    pool: str
    saturation: float
    gate: str
    arriving: float
    capacity: float
    arrival_tokens_per_s: float
    replica_tokens_per_s: float
    numbers: tuple[tuple[str, float], ...]


def pressure(
    view: PoolView, *, pending_since_s: float | None, params: TierParams
) -> Pressure | None:
    """The pool's pressure, None if its size or load is unknown."""
    if view.size is None or view.load is None:
        return None
    size, load, pool = view.size, view.load, view.pool
    overdue = (
        pending_since_s is not None
        and view.now_s - pending_since_s > params.overdue_factor * pool.cold_start_s
    )
    starting = size.ready == 0 and not overdue
    tokens = load.in_flight_tokens + load.queued_tokens
    fullness = tokens / (max(1, size.ready) * pool.capacity_in_flight_tokens)
    wait = 0.0 if starting else load.oldest_wait_s / params.wait_limit_s
    gate = ""
    if size.target >= view.most and size.pending == 0:
        gate = f"the {pool.pool} pool is at its maximum"
    elif overdue:
        gate = "pending replicas are overdue"
    elif wait >= 1.0:
        gate = "requests wait longer than the limit"
    return Pressure(
        pool=pool.pool,
        saturation=max(fullness, wait),
        gate=gate,
        arriving=view.busy.arriving,
        capacity=view.capacity,
        arrival_tokens_per_s=load.arrival_tokens_per_s,
        replica_tokens_per_s=pool.capacity_tokens_per_s,
        numbers=(
            ("fullness", fullness),
            ("maximum", float(view.most)),
            ("oldest_wait_s", load.oldest_wait_s),
            ("pending", float(size.pending)),
            ("ready", float(size.ready)),
            ("target", float(size.target)),
        ),
    )


def retry_after_s(queued_s: float, capacity: float, *, params: TierParams) -> int:
    """Whole seconds (HTTP delta-seconds) after which a refused request should come back.

    `queued_s`: what waits, in seconds of one replica. `capacity`: ready replicas.
    ceil(backlog / capacity), within the bounds of `params`; the upper bound without capacity or
    with an unknown (NaN) backlog.
    """
    low, high = math.ceil(params.retry_after_min_s), math.floor(params.retry_after_max_s)
    if capacity <= 0.0:
        return high
    seconds = queued_s / capacity
    return max(low, math.ceil(seconds)) if seconds <= high else high
