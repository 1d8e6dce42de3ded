"""What if requests were routed otherwise? Simpler routers to compare `routing.pick` with.

    scored          what the live gateway does: token headroom, batch slots, the engine's own report
    least_requests  the replica with the fewest requests of this gateway in flight
    round_robin     one after the other
    random          any

All choose among replicas that may take the request, so that they differ in the choice alone. To
compare another, write a factory of a `Picker` (one per gateway and pool, so that it may remember)
and add its line to `ROUTERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from cluster.routing import ReplicaView, RouteRequest, feasible, pick


class Picker(Protocol):
    """Chooses a replica, or None if the request has to wait; `tie` in [0, 1) is drawn."""

    def __call__(  # noqa: D102
        self, request: RouteRequest, replicas: Sequence[ReplicaView], *, tie: float
    ) -> ReplicaView | None: ...


def scored() -> Picker:
    """The live gateway's."""
    return pick


def least_requests() -> Picker:
    """Fewest in flight."""

    def choose(
        request: RouteRequest, replicas: Sequence[ReplicaView], *, tie: float
    ) -> ReplicaView | None:
        able = [replica for replica in replicas if feasible(request, replica)]
        fewest = min((replica.in_flight_requests for replica in able), default=0)
        equals = [replica for replica in able if replica.in_flight_requests == fewest]
        return equals[int(tie * len(equals))] if equals else None

    return choose


def round_robin() -> Picker:
    """In turns, by name; one that cannot take the request is passed over."""
    last = ""

    def choose(
        request: RouteRequest,
        replicas: Sequence[ReplicaView],
        *,
        tie: float,  # noqa: ARG001  nothing is drawn
    ) -> ReplicaView | None:
        nonlocal last
        able = sorted(
            (replica for replica in replicas if feasible(request, replica)),
            key=lambda replica: replica.replica_id,
        )
        if not able:
            return None
        chosen = next((replica for replica in able if replica.replica_id > last), able[0])
        last = chosen.replica_id
        return chosen

    return choose


def random() -> Picker:
    """Any."""

    def choose(
        request: RouteRequest, replicas: Sequence[ReplicaView], *, tie: float
    ) -> ReplicaView | None:
        able = [replica for replica in replicas if feasible(request, replica)]
        return able[int(tie * len(able))] if able else None

    return choose


ROUTERS: Mapping[str, Callable[[], Picker]] = MappingProxyType(
    {
        "scored": scored,
        "least_requests": least_requests,
        "round_robin": round_robin,
        "random": random,
    }
)
