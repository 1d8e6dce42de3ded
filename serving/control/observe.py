"""From reports to a snapshot: what the controller actor has heard, as the pure core sees it.

Reports older than `FORGET_AFTER_S` are dropped: a gateway or replica that died takes its load and
its name with it. Serve's own state, read at each tick, says how many replicas there should be; one
that it routes to and that is silent stays in sight, or nobody would ask what is the matter with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from autoscaler.snapshot import (
    ClusterSnapshot,
    LoadObservation,
    PoolObservation,
    ReplicaObservation,
    StartingReplica,
    WorkloadObservation,
    observed,
)
from cluster.pool_ledger import Elsewhere
from serving.control.scaler import DeploymentState
from serving.keeper.account import Kept, ReplicaUse
from serving.messages import GatewayReport, PoolLoad, ReplicaReport

# Several report intervals: one lost report is not a lost replica, and a busy core delays more.
FORGET_AFTER_S = 6.0
# Gateways hear for so long that a replica was given up; its name never comes again.
LOST_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Moving:
    """A pool on its way to another layout. `answering`: replicas of the new one that gateways use.

    `worth`: replicas of the old one that carry as much as those. `why`: what happens, in words.
    `number`: the new generation's.
    """

    number: int
    answering: frozenset[str]
    worth: int
    why: str


@dataclass
class Heard:
    """The latest report of every replica and gateway, and Serve's state at the last tick.

    `silent`: the last reports of replicas that Serve routes to and that are heard no more. `lost`:
    replicas that are being ended, and since when. `kept`: what the nodes' keepers tell. `moving`:
    pools that change their layout. `start_failures`: why the last start of a pool failed, in words.
    `books`: replicas of every generation, in any state.
    """

    replicas: dict[str, ReplicaReport] = field(default_factory=dict)
    gateways: dict[str, GatewayReport] = field(default_factory=dict)
    deployments: Mapping[str, DeploymentState] = field(default_factory=dict)
    deployments_s: float = 0.0
    silent: dict[str, ReplicaReport] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)
    kept: Kept = field(default_factory=Kept)
    moving: Mapping[str, Moving] = field(default_factory=dict)
    books: frozenset[str] = frozenset()
    start_failures: dict[str, str] = field(default_factory=dict)

    def forget(self, now_s: float) -> None:
        """Drop what is too old to say anything."""
        routed = self._routed()
        last = self.silent | self.replicas
        self.silent = {k: r for k, r in last.items() if k in routed and not _fresh(r.sent_s, now_s)}
        self.replicas = {k: r for k, r in self.replicas.items() if _fresh(r.sent_s, now_s)}
        self.gateways = {k: g for k, g in self.gateways.items() if _fresh(g.sent_s, now_s)}
        self.lost = {k: since_s for k, since_s in self.lost.items() if now_s - since_s <= LOST_S}

    def answering(self, now_s: float) -> tuple[ReplicaReport, ...] | None:
        """Reports of the replicas that Serve routes to and nobody has given up.

        One that is being stopped reports still. None if Serve has some and none of them was
        heard: then the reports are at fault, not the replicas. While Serve itself is silent, all
        that report count.
        """
        if not _fresh(self.deployments_s, now_s):
            return tuple(
                r
                for r in self.replicas.values()
                if r.replica_id not in self.lost and not self._withheld(r)
            )
        routed = self._routed() - self.lost.keys()
        heard = tuple(r for r in self.replicas.values() if r.replica_id in routed)
        return None if routed and not heard else heard

    def living(self, now_s: float) -> frozenset[str] | None:
        """Replicas in Serve's books, in any state; None while they are old or empty.

        Serve that has lost its controller answers that it has none.
        """
        states = self.deployments.values()
        if not states or not _fresh(self.deployments_s, now_s):
            return None
        in_force = (replica.replica_id for state in states for replica in state.replicas)
        return self.books.union(in_force)

    def in_flight(self, replica_id: str) -> int:
        """Requests that gateways have on a replica."""
        nothing = (0, 0.0)
        return sum(g.in_flight.get(replica_id, nothing)[0] for g in self.gateways.values())

    def _withheld(self, report: ReplicaReport) -> bool:
        """Whether it is of a layout that takes over, and has yet to give its first answer."""
        moving = self.moving.get(report.pool)
        return (
            moving is not None
            and report.generation == moving.number
            and report.replica_id not in moving.answering
        )

    def unheard(self) -> tuple[ReplicaReport, ...]:
        """Last reports of those that Serve routes to and that are silent, but for the lost."""
        return tuple(r for name, r in self.silent.items() if name not in self.lost)

    def owed_s(self, replica_id: str) -> float:
        """How long all gateways together have waited for a token of a replica.

        The longest that any has waited, but no longer than since it last said one to anybody: a
        replica that one gateway does not reach is not dead.
        """
        told = [g.owed[replica_id] for g in self.gateways.values() if replica_id in g.owed]
        if not told:
            return 0.0
        return min(max(owed.owed_s for owed in told), *(owed.silent_s for owed in told))

    def _routed(self) -> frozenset[str]:
        return frozenset().union(
            *(state.answering for state in self.deployments.values()),
            *(moving.answering for moving in self.moving.values()),
        )

    def elsewhere(self, gateway_id: str) -> Elsewhere:
        """What the other gateways have in flight."""
        others = [g for name, g in self.gateways.items() if name != gateway_id]
        held: dict[str, tuple[float, float]] = {}
        for gateway in others:
            for replica_id, (requests, tokens) in gateway.in_flight.items():
                before = held.get(replica_id, (0.0, 0.0))
                held[replica_id] = (before[0] + requests, before[1] + tokens)
        return Elsewhere(gateways=len(others), held=held)

    def charged(self, gateway_id: str) -> dict[str, dict[str, tuple[float, float]]]:
        """What the other gateways have charged to API keys, by gateway."""
        return {name: g.charged for name, g in self.gateways.items() if name != gateway_id}


def in_public(gateway: GatewayReport) -> dict[str, str | int]:
    """A gateway as anyone may see it: what keys there are, and what they use, is left out."""
    requests = sum(count for count, _ in gateway.in_flight.values())
    return {"id": gateway.gateway_id, "address": gateway.address, "requests": requests}


def snapshot(
    heard: Heard,
    *,
    pools: Iterable[str],
    now_s: float,
    workloads: tuple[WorkloadObservation, ...] = (),
) -> ClusterSnapshot:
    """What the controller may decide on. A pool Serve has not reported is left out: unknown."""
    pools = tuple(pools)
    return ClusterSnapshot(
        now_s=now_s,
        pools=tuple(_pool(heard, name) for name in pools if name in heard.deployments),
        loads=tuple(load for name in pools for load in _load(heard, name)),
        workloads=workloads,
    )


def requests_in_flight(heard: Heard) -> dict[str, float]:
    """Requests that gateways have on the replicas of each pool."""
    pools = {replica_id: report.pool for replica_id, report in heard.replicas.items()}
    found: dict[str, float] = dict.fromkeys(pools.values(), 0.0)
    for gateway in heard.gateways.values():
        for replica_id, (requests, _) in gateway.in_flight.items():
            if replica_id in pools:
                found[pools[replica_id]] += requests
    return found


def _pool(heard: Heard, name: str) -> PoolObservation:
    state = heard.deployments[name]
    moving = heard.moving.get(name)
    worth = 0 if moving is None else moving.worth
    return PoolObservation(
        pool=name,
        observed_s=heard.deployments_s,
        target=state.target + worth,
        ready=state.running + worth,
        pending=max(state.starting, state.target - state.running, 0),
        replicas=tuple(_replicas(heard, state, pool=name)),
        starting=tuple(
            StartingReplica(replica_id=replica.replica_id, since_s=replica.since_s)
            for replica in state.replicas
            if replica.starts
        ),
        unmet=heard.kept.unmet.get(name, ""),
        start_failure=heard.start_failures.get(name, ""),
        moving="" if moving is None else moving.why,
        deploying=state.deploying,
    )


def _replicas(heard: Heard, state: DeploymentState, *, pool: str) -> Iterator[ReplicaObservation]:
    """Those that report, and those that Serve routes to and that report no more, or never have."""
    reports = heard.silent | heard.replicas
    for report in reports.values():
        if report.pool == pool:
            yield replace(_known(heard, observed(report)), steps=report.steps)
    for replica_id in sorted(state.answering - reports.keys()):
        unheard = ReplicaObservation(
            replica_id=replica_id,
            observed_s=math.nan,
            running=0,
            waiting=0,
            kv_usage=math.nan,
        )
        yield _known(heard, unheard)


def _known(heard: Heard, replica: ReplicaObservation) -> ReplicaObservation:
    """With what gateways and the nodes' keepers say of it."""
    use = heard.kept.uses.get(replica.replica_id, ReplicaUse())
    return replace(
        replica,
        owed_s=heard.owed_s(replica.replica_id),
        in_flight=heard.in_flight(replica.replica_id),
        host_bytes=use.host_bytes,
        device_bytes=use.device_bytes,
        device_fault=use.device_fault,
    )


def _load(heard: Heard, name: str) -> list[LoadObservation]:
    """The pool's traffic summed over gateways; nothing if no gateway has reported it."""
    reports = [
        (gateway.sent_s, load)
        for gateway in heard.gateways.values()
        for load in gateway.loads
        if load.pool == name
    ]
    if not reports:
        return []
    loads: list[PoolLoad] = [load for _, load in reports]
    return [
        LoadObservation(
            pool=name,
            observed_s=min(sent_s for sent_s, _ in reports),
            arrival_tokens_per_s=sum(load.arrival_tokens_per_s for load in loads),
            in_flight_tokens=sum(load.in_flight_tokens for load in loads),
            queued_tokens=sum(load.queued_tokens for load in loads),
            queued_requests=sum(load.queued_requests for load in loads),
            oldest_wait_s=max(load.oldest_wait_s for load in loads),
            arrival_work=sum(load.arrival_work for load in loads),
            in_flight_work=sum(load.in_flight_work for load in loads),
            queued_work=sum(load.queued_work for load in loads),
        )
    ]


def _fresh(sent_s: float, now_s: float) -> bool:
    return now_s - sent_s <= FORGET_AFTER_S
