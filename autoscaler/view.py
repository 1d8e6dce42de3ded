"""What do we know about each pool right now?

A view is a pool's part of the snapshot with everything unusable taken out: a stale, missing or
malformed observation is None here, with the fault in words, so that no policy can mistake it for
zero.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from autoscaler.guards import fault
from autoscaler.need import SCALING_POLICIES, Busy, ScalingPolicy, token_load
from autoscaler.params import ControllerParams, PoolParams
from autoscaler.snapshot import ClusterSnapshot, LoadObservation, PoolObservation
from cluster.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class PoolView:
    """One pool at `now_s`: its parameters, and what is known of its size and its load.

    `fault` is empty if both are known, else which one is unusable and why; `ages` are the ages of
    the observations there are, usable or not, seconds. `policy`: how load is counted.
    `delivered`: how fast replicas work, over what is planned. `limit`: replicas that may be asked
    for now, by `limit_why`; None: the pool's maximum.
    """

    now_s: float
    pool: PoolParams
    size: PoolObservation | None
    load: LoadObservation | None
    fault: str = ""
    ages: tuple[tuple[str, float], ...] = ()
    policy: ScalingPolicy = token_load
    delivered: float = 1.0
    limit: int | None = None
    limit_why: str = ""

    @property
    def busy(self) -> Busy:
        """The load in replicas that work as planned; ask only where it is known."""
        assert self.load is not None
        return self.policy(self.load, self.pool.capacity)

    @property
    def capacity(self) -> float:
        """What is ready, in replicas that work as planned; 0 where the size is unknown."""
        return 0.0 if self.size is None else self.size.ready * self.delivered

    @property
    def most(self) -> int:
        """Replicas that may be asked for now."""
        return self.pool.maximum if self.limit is None else min(self.limit, self.pool.maximum)


def look(snapshot: ClusterSnapshot, params: ControllerParams) -> tuple[PoolView, ...]:
    """A view per pool of `params`, in their order.

    Raises UnknownNameError if the snapshot names another pool, ConfigError if it reports one
    twice: both are wiring faults, and reading on would steer the wrong thing.
    """
    for kind, names in (
        ("pools", [item.pool for item in snapshot.pools]),
        ("loads", [item.pool for item in snapshot.loads]),
    ):
        for name, count in Counter(names).items():
            params.pool(name)
            if count > 1:
                raise ConfigError(
                    source="snapshot",
                    field=kind,
                    problem=f"reports pool '{name}' {count} times.",
                    fix="sum over gateways first; one controller owns one service.",
                )
    policy = SCALING_POLICIES[params.scaling.policy]
    views = (_view(snapshot, pool, stale_after_s=params.stale_after_s) for pool in params.pools)
    return tuple(replace(view, policy=policy) for view in views)


def _view(snapshot: ClusterSnapshot, pool: PoolParams, *, stale_after_s: float) -> PoolView:
    now_s = snapshot.now_s
    size = next((item for item in snapshot.pools if item.pool == pool.pool), None)
    load = next((item for item in snapshot.loads if item.pool == pool.pool), None)
    size_fault = fault(
        size.observed_s if size else None,
        (size.target, size.ready, size.pending) if size else (),
        now_s=now_s,
        stale_after_s=stale_after_s,
    )
    load_fault = fault(
        load.observed_s if load else None,
        _numbers(load) if load else (),
        now_s=now_s,
        stale_after_s=stale_after_s,
    )
    faults = [
        f"{what} is {why}" for what, why in (("size", size_fault), ("load", load_fault)) if why
    ]
    ages = [
        (name, now_s - item.observed_s)
        for name, item in (("size_age_s", size), ("load_age_s", load))
        if item is not None and math.isfinite(item.observed_s)
    ]
    return PoolView(
        now_s=now_s,
        pool=pool,
        size=None if size_fault else size,
        load=None if load_fault else load,
        fault=" and ".join(faults),
        ages=tuple(ages),
    )


def _numbers(load: LoadObservation) -> tuple[float, ...]:
    return (
        load.arrival_tokens_per_s,
        load.in_flight_tokens,
        load.queued_tokens,
        float(load.queued_requests),
        load.oldest_wait_s,
        load.arrival_work,
        load.in_flight_work,
        load.queued_work,
    )
