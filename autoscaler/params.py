"""What can an operator set about steering? All thresholds, delays and limits, with units.

Plain frozen data, validated when made: a value that cannot work raises ConfigError before the
first tick, a name that is in no table (pool, forecaster, policy) raises UnknownNameError. The
JSON form (`params_to_json`, `params_from_json`) is complete, so that a decision log needs nothing
else to be replayed.

Invariants: leave thresholds are below the enter thresholds of the same tier, and neither falls
with the tier; `down_utilisation` < `target_utilisation` < leave thresholds; the down delay is at
least as long as the window the load is averaged over (a shorter one reacts to its own past);
staleness spans at least three ticks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from autoscaler.checks import above, at_least, fraction, require
from autoscaler.delivery_params import DeliveryParams
from autoscaler.fault_params import FaultParams
from autoscaler.forecast_params import ForecastParams
from autoscaler.headroom_params import HeadroomParams
from autoscaler.leak_params import LeakParams
from autoscaler.need import SCALING_POLICIES, Capacity
from autoscaler.replan_params import ReplanParams
from autoscaler.snapshot import Tier
from cluster.engine_work import EngineWork
from cluster.errors import UnknownNameError

MAIN_POOL = "main"
LIGHT_POOL = "light"
POOL_NAMES = (MAIN_POOL, LIGHT_POOL)


class Mode(StrEnum):
    """ACTIVE: decisions are carried out. ADVISORY: they are only reported."""

    ACTIVE = "active"
    ADVISORY = "advisory"


@dataclass(frozen=True, kw_only=True)
class ScalingParams:
    """Scaling of every pool.

    `policy`: a key of `SCALING_POLICIES`. `target_utilisation`: fraction of a replica's capacity
    that is planned for; more load adds replicas. `down_utilisation`: replicas are removed only if
    the survivors stay at or under it. `up_delay_s`, `down_delay_s`: how long more, or fewer,
    replicas must be wanted without a break. `to_zero_delay_s`: the same for the last replica.
    `max_step_up`, `max_step_down`: replicas per decision. `drain_s`: seconds in which a backlog
    should be gone. `backlog_s`: queued work below this many seconds of service is a batch being
    formed, not a backlog.
    """

    policy: str = "token_load"
    target_utilisation: float = 0.8
    down_utilisation: float = 0.6
    up_delay_s: float = 4.0
    down_delay_s: float = 120.0
    to_zero_delay_s: float = 600.0
    max_step_up: int = 4
    max_step_down: int = 1
    drain_s: float = 30.0
    backlog_s: float = 0.5

    def __post_init__(self) -> None:
        if self.policy not in SCALING_POLICIES:
            raise UnknownNameError(kind="scaling policy", name=self.policy, known=SCALING_POLICIES)
        fraction("scaling.target_utilisation", self.target_utilisation)
        fraction("scaling.down_utilisation", self.down_utilisation)
        require(
            self.down_utilisation < self.target_utilisation,
            field="scaling.down_utilisation",
            problem=f"is {self.down_utilisation}, not below target_utilisation "
            f"{self.target_utilisation}: the pool would add and remove the same replica.",
        )
        at_least("scaling.up_delay_s", self.up_delay_s, 0.0)
        at_least("scaling.down_delay_s", self.down_delay_s, self.up_delay_s)
        at_least("scaling.to_zero_delay_s", self.to_zero_delay_s, self.down_delay_s)
        at_least("scaling.max_step_up", self.max_step_up, 1)
        at_least("scaling.max_step_down", self.max_step_down, 1)
        above("scaling.drain_s", self.drain_s, 0.0)
        at_least("scaling.backlog_s", self.backlog_s, 0.0)


@dataclass(frozen=True, kw_only=True)
class TierParams:
    """Degradation tiers.

    `enter`, `leave`: saturation at which tiers 1..4 are entered and left. `enter_s`, `leave_s`:
    how long it must be above, or below. `probe_s`: replaces `leave_s` for tiers 3 and 4 while the
    arrivals (moved and refused ones included) exceed `fit_ratio` of the main pool's capacity.
    `wait_limit_s`: oldest queue wait that counts as saturation 1. `fail_open_s`: seconds without
    data after which tiers step down. `overdue_factor`: a replica still pending after this many
    cold starts no longer keeps a tier from being entered. `light_release_s`: seconds at NORMAL
    after which the light pool need not be warm. `retry_after_*_s`: bounds of Retry-After.
    """

    enter: tuple[float, ...] = (1.0, 1.1, 1.3, 1.6)
    leave: tuple[float, ...] = (0.85, 0.85, 0.85, 0.85)
    enter_s: float = 5.0
    leave_s: float = 30.0
    probe_s: float = 300.0
    fit_ratio: float = 0.9
    wait_limit_s: float = 10.0
    fail_open_s: float = 60.0
    overdue_factor: float = 1.5
    light_release_s: float = 120.0
    retry_after_min_s: float = 1.0
    retry_after_max_s: float = 120.0

    def __post_init__(self) -> None:
        for name, values in (("enter", self.enter), ("leave", self.leave)):
            require(
                len(values) == Tier.SHED and all(v > 0.0 for v in values),
                field=f"tiers.{name}",
                problem=f"is {list(values)}; it needs four positive thresholds, tiers 1 to 4.",
            )
            require(
                list(values) == sorted(values),
                field=f"tiers.{name}",
                problem=f"is {list(values)}; thresholds may not fall with the tier.",
            )
        require(
            all(low < high for low, high in zip(self.leave, self.enter, strict=True)),
            field="tiers.leave",
            problem=f"is {list(self.leave)}; each must be below enter {list(self.enter)}.",
        )
        at_least("tiers.enter_s", self.enter_s, 0.0)
        at_least("tiers.leave_s", self.leave_s, self.enter_s)
        at_least("tiers.probe_s", self.probe_s, self.leave_s)
        above("tiers.fit_ratio", self.fit_ratio, 0.0)
        above("tiers.wait_limit_s", self.wait_limit_s, 0.0)
        at_least("tiers.fail_open_s", self.fail_open_s, 0.0)
        at_least("tiers.overdue_factor", self.overdue_factor, 1.0)
        at_least("tiers.light_release_s", self.light_release_s, 0.0)
        at_least("tiers.retry_after_min_s", self.retry_after_min_s, 1.0)
        at_least("tiers.retry_after_max_s", self.retry_after_max_s, self.retry_after_min_s)


@dataclass(frozen=True, kw_only=True)
class PoolParams:
    """One pool: its bounds and what one replica carries.

    `minimum`, `maximum`: replicas, a hard clamp. `capacity_tokens_per_s`: predicted tokens/s one
    replica delivers. `capacity_in_flight_tokens`: predicted tokens one replica holds at once.
    `cold_start_s`: from asking for a replica to its first answer. `work`: what tokens cost on a
    replica, None where nobody knows.
    """

    pool: str
    minimum: int = 1
    maximum: int = 1
    capacity_tokens_per_s: float
    capacity_in_flight_tokens: float
    cold_start_s: float = 60.0
    work: EngineWork | None = None

    def __post_init__(self) -> None:
        if self.pool not in POOL_NAMES:
            raise UnknownNameError(kind="pool", name=self.pool, known=POOL_NAMES)
        at_least(f"pools.{self.pool}.minimum", self.minimum, 0)
        at_least(f"pools.{self.pool}.maximum", self.maximum, max(1, self.minimum))
        above(f"pools.{self.pool}.capacity_tokens_per_s", self.capacity_tokens_per_s, 0.0)
        above(f"pools.{self.pool}.capacity_in_flight_tokens", self.capacity_in_flight_tokens, 0.0)
        at_least(f"pools.{self.pool}.cold_start_s", self.cold_start_s, 0.0)

    @property
    def capacity(self) -> Capacity:
        """What one replica carries."""
        return Capacity(
            tokens_per_s=self.capacity_tokens_per_s,
            in_flight_tokens=self.capacity_in_flight_tokens,
        )


@dataclass(frozen=True, kw_only=True)
class ControllerParams:
    """All of steering.

    `pools`: main first, then light if there is one. `tick_s`: seconds between steps.
    `stale_after_s`: an older observation is unknown. `load_window_s`: seconds the gateways
    average arrivals over. `ack_timeout_s`: how long a request to Serve may stay unacknowledged
    before the actual target counts again.
    """

    pools: tuple[PoolParams, ...]
    forecast: ForecastParams = field(default_factory=ForecastParams)
    headroom: HeadroomParams = field(default_factory=HeadroomParams)
    scaling: ScalingParams = field(default_factory=ScalingParams)
    tiers: TierParams = field(default_factory=TierParams)
    delivery: DeliveryParams = field(default_factory=DeliveryParams)
    leaks: LeakParams = field(default_factory=LeakParams)
    replan: ReplanParams = field(default_factory=ReplanParams)
    faults: FaultParams = field(default_factory=FaultParams)
    mode: Mode = Mode.ACTIVE
    tick_s: float = 2.0
    stale_after_s: float = 10.0
    load_window_s: float = 5.0
    ack_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        names = tuple(pool.pool for pool in self.pools)
        require(
            names in (POOL_NAMES[:1], POOL_NAMES),
            field="pools",
            problem=f"are {list(names)}; they must be main, or main and light, in this order.",
        )
        above("tick_s", self.tick_s, 0.0)
        at_least("stale_after_s", self.stale_after_s, 3.0 * self.tick_s)
        above("load_window_s", self.load_window_s, 0.0)
        at_least("scaling.down_delay_s", self.scaling.down_delay_s, self.load_window_s)
        at_least("ack_timeout_s", self.ack_timeout_s, self.tick_s)
        # Below it a tier would stay for ever at the load the pools are sized for.
        above("tiers.leave", self.tiers.leave[0], self.scaling.target_utilisation)

    @property
    def main(self) -> PoolParams:
        """The pool of the planned model."""
        return self.pools[0]

    @property
    def light(self) -> PoolParams | None:
        """The pool of the lighter model, if there is one."""
        return self.pools[1] if len(self.pools) > 1 else None

    def pool(self, name: str) -> PoolParams:
        """The pool called `name`. Raises UnknownNameError."""
        for pool in self.pools:
            if pool.pool == name:
                return pool
        raise UnknownNameError(kind="pool", name=name, known=[pool.pool for pool in self.pools])
