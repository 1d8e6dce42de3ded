"""What does Ray know of the nodes, and of where our replicas are? Its own state, and the keepers.

Calls block; the controller makes them in threads. A replica is known by the name Serve gives its
actor and its placement group alike: `SERVE_REPLICA::application#deployment#id`.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
import ray
from ray._private import state as ray_state
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.ray_backend.node_supply import NodeSupply
from cluster.ray_backend.ray_supply import node_supply
from cluster.ray_backend.unmet import NodeRoom
from serving.keeper.node_keeper import NodeKeeper
from serving.weights.cluster import store_name

KEEPER = "shardwise-keeper-"
_ENDING_S = 15.0
# 10,000 is the most that Ray's interface lists.
_NOT_DEAD = {
    "detail": "1",
    "limit": "10000",
    "filter_keys": "state",
    "filter_predicates": "!=",
    "filter_values": "DEAD",
}


@dataclass(frozen=True, kw_only=True)
class ReplicaGroup:
    """The placement group of a replica. `waiting`: Ray has not placed it (any more)."""

    group_id: str
    pool: str
    replica_id: str
    waiting: bool
    strategy: str
    bundles: tuple[dict[str, float], ...]


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A Ray actor of a replica: its own, or one of its ranks."""

    replica_id: str
    node_id: str
    pid: int


class Cluster(Protocol):
    """What is asked of Ray; tests have one that is made up."""

    def rooms(self) -> dict[str, NodeRoom]:
        """Living nodes by id."""
        ...

    def supply(self) -> NodeSupply:
        """What Ray's autoscaler says."""
        ...

    def groups(self) -> list[ReplicaGroup]:
        """Placement groups of our replicas that were not removed."""
        ...

    def ranks(self, groups: list[ReplicaGroup]) -> list[Rank]:
        """Living actors in these groups."""
        ...

    def remove_group(self, group_id: str) -> None:
        """Give its resources back."""
        ...

    def keeper(self, node_id: str) -> Any:
        """The handle of a node's keeper, started if it is not there."""
        ...

    def drop_keeper(self, keeper: Any) -> None:
        """End the keeper of a node that is gone."""
        ...

    def leave(self, node_id: str) -> None:
        """End keeper and weight store of a node that holds no replica."""
        ...


class RayCluster:
    """The cluster this process is connected to.

    `app`: Serve application; its generations count. `token`: that its dashboard asks for, if any.
    """

    def __init__(
        self,
        *,
        app: str,
        application: str,
        namespace: str,
        orphan_grace_s: float,
        dashboard_url: str,
        token: str | None,
    ) -> None:
        self._name = re.compile(
            rf"SERVE_REPLICA::{re.escape(app)}(?:-[a-z]+-[0-9]+)?#(?P<pool>[^#]+)#(?P<id>[^#]+)"
        )
        self._application = application
        self._namespace = namespace
        self._orphan_grace_s = orphan_grace_s
        self._actors = f"{dashboard_url}/api/v0/actors"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def rooms(self) -> dict[str, NodeRoom]:
        """See `Cluster.rooms`."""
        free = ray_state.available_resources_per_node()
        return {
            node["NodeID"]: NodeRoom(
                name=node["NodeManagerAddress"],
                free=free.get(node["NodeID"], {}),
                total=node["Resources"],
            )
            for node in ray.nodes()
            if node["Alive"]
        }

    def supply(self) -> NodeSupply:
        """See `Cluster.supply`."""
        return node_supply()

    def groups(self) -> list[ReplicaGroup]:
        """See `Cluster.groups`."""
        found = []
        for group_id, group in ray.util.placement_group_table().items():
            name = self._name.fullmatch(group["name"])
            if name is not None and group["state"] != "REMOVED":
                found.append(
                    ReplicaGroup(
                        group_id=group_id,
                        pool=name["pool"],
                        replica_id=name["id"],
                        waiting=group["state"] in ("PENDING", "RESCHEDULING"),
                        strategy=group["strategy"],
                        bundles=tuple(group["bundles"].values()),
                    )
                )
        return found

    def ranks(self, groups: list[ReplicaGroup]) -> list[Rank]:
        """See `Cluster.ranks`."""
        owners = {group.group_id: group.replica_id for group in groups}
        # Not by `ray.util.state`: that looks for a cluster itself, and may find another one.
        response = httpx.get(
            self._actors,
            params=_NOT_DEAD,
            headers=self._headers,
            timeout=10.0,
            trust_env=False,  # the cluster's own address, not a matter for a proxy
        )
        response.raise_for_status()
        actors = response.json()["data"]["result"]["result"]
        return [
            Rank(
                replica_id=owners[actor["placement_group_id"]],
                node_id=actor["node_id"] or "",
                pid=actor["pid"] or 0,
            )
            for actor in actors
            if actor["placement_group_id"] in owners
        ]

    def remove_group(self, group_id: str) -> None:
        """See `Cluster.remove_group`."""
        ray.util.remove_placement_group(
            PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group_id)))
        )

    def keeper(self, node_id: str) -> Any:
        """See `Cluster.keeper`."""
        actor = ray.remote(NodeKeeper).options(
            name=self._keeper_name(node_id),
            namespace=self._namespace,
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node_id, soft=False),
        )
        return actor.remote(self._application, orphan_grace_s=self._orphan_grace_s)

    def drop_keeper(self, keeper: Any) -> None:
        """See `Cluster.drop_keeper`."""
        ray.kill(keeper, no_restart=True)

    def leave(self, node_id: str) -> None:
        """See `Cluster.leave`."""
        for name in (self._keeper_name(node_id), store_name(node_id)):
            with contextlib.suppress(ValueError):  # it is not there
                ray.kill(ray.get_actor(name, namespace=self._namespace), no_restart=True)

    def _keeper_name(self, node_id: str) -> str:
        return f"{KEEPER}{self._application[:8]}-{node_id[:16]}"


def end_keepers(namespace: str) -> None:
    """End all keepers, and before them what is left of our replicas on their nodes."""
    names = [
        actor["name"]
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["namespace"] == namespace and actor["name"].startswith(KEEPER)
    ]
    keepers = []
    for name in names:
        with contextlib.suppress(ValueError):  # it has just gone
            keepers.append(ray.get_actor(name, namespace=namespace))
    ending = [keeper.end.remote() for keeper in keepers]
    if ending:
        ray.wait(ending, num_returns=len(ending), timeout=_ENDING_S)
    for keeper in keepers:
        ray.kill(keeper, no_restart=True)
