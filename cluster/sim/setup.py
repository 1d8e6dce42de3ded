"""What is simulated? Pools of replicas behind a gateway, its rules, and what breaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.engine_work import EngineWork
from cluster.errors import ConfigError, UnknownNameError
from cluster.lengths.predictors import PREDICTORS
from cluster.model.workload import Slo
from cluster.pool_ledger import ReplicaLimits
from cluster.priority import Priority
from cluster.routers import ROUTERS
from cluster.sim.failures import NODE, Failure
from cluster.sim.spec import ReplicaSpec, Role


@dataclass(frozen=True, kw_only=True)
class GatewayRules:
    """What the gateway does, as `LimitsSection` of `serving.settings.config` says, and will do.

    `expected_output`: output tokens expected of a request before anything is known of its like;
    `length_predictor` (a name of `cluster.lengths.predictors.PREDICTORS`) says what is known.
    `delays_s`: how long a class lets a VIP pass. While every replica is busy, requests are held for
    `batch_wait_s` or until `batch_tokens` are together, then placed as a batch (0: never held). A
    request that has not started `reschedule_after_s` after its dispatch goes to a better replica,
    `max_moves` times at most (infinite: never). `resumes`: streams of a lost replica are continued
    elsewhere, from prompt and output so far; else they break. `router`: a name of
    `cluster.routers.ROUTERS`.
    """

    expected_output: int = 256
    max_queued: int = 512
    queue_wait_s: float = 60.0
    attempts: int = 3
    delays_s: Mapping[Priority, float] = field(
        default_factory=lambda: {
            Priority.VIP: 0.0,
            Priority.STANDARD: 30.0,
            Priority.BATCH: 120.0,
        }
    )
    batch_wait_s: float = 0.0
    batch_tokens: float = 4096.0
    vip_slots: int = 2
    prefix_affinity: bool = True
    reschedule_after_s: float = 0.5
    max_moves: int = 2
    resumes: bool = False
    router: str = "scored"
    length_predictor: str = "learned"

    def __post_init__(self) -> None:
        if self.router not in ROUTERS:
            raise UnknownNameError(kind="router", name=self.router, known=ROUTERS)
        if self.length_predictor not in PREDICTORS:
            raise UnknownNameError(
                kind="length predictor", name=self.length_predictor, known=PREDICTORS
            )


@dataclass(frozen=True, kw_only=True)
class HealthRules:
    """How a fault is noticed: reports come at every tick and are forgotten after `forget_s`.

    `dead_after_s`: a replica that says nothing for so long is replaced (Serve's health check every
    2 s with 8 s of patience).
    """

    forget_s: float = 6.0
    dead_after_s: float = 10.0


@dataclass(frozen=True, kw_only=True)
class PoolSetup:
    """A pool: its replica, how many there are at first, and what the gateway gives each.

    `max_context`: tokens, prompt and output, that its model accepts; more is refused. `work`: what
    the gateway takes tokens to cost; where nobody knows, `engine_work.turned_over`.
    """

    name: str
    spec: ReplicaSpec
    replicas: int
    limits: ReplicaLimits
    price_per_device_hour: float | None = None
    replicas_per_node: int = 1
    max_context: int = 1 << 40
    work: EngineWork | None = None

    def __post_init__(self) -> None:
        if self.replicas < 0:
            raise ConfigError(
                source=f"pool {self.name}",
                field="replicas",
                problem=f"is {self.replicas}, it must be at least 0.",
            )


@dataclass(frozen=True, kw_only=True)
class Setup:
    """All of it. The first pool takes requests, unless a driver sends them elsewhere."""

    pools: tuple[PoolSetup, ...]
    gateway: GatewayRules = GatewayRules()
    health: HealthRules = HealthRules()
    failures: tuple[Failure, ...] = ()
    slo: Slo = field(default_factory=Slo)

    def __post_init__(self) -> None:
        names = [pool.name for pool in self.pools]
        if not names or len(set(names)) != len(names):
            raise ConfigError(
                source="simulation", field="pools", problem=f"are {names}: some, all distinct."
            )
        for failure in self.failures:
            if failure.pool not in (*names, NODE):
                raise ConfigError(
                    source="failures",
                    field=failure.pool,
                    problem=f"is no pool; there are {', '.join(names)}, and {NODE}.",
                )
        roles = [pool.spec.role for pool in self.pools]
        if (Role.PREFILL in roles) != (Role.DECODE in roles):
            raise ConfigError(
                source="simulation",
                field="pools",
                problem="have only one of the roles prefill and decode.",
                fix="give a pool of each, or pools with both roles.",
            )
