"""How is Ray's autoscaler asked for nodes? By placement groups of the new replicas' own shape.

These are demand beside what the cluster does, as replicas that wait are, and placed as they are.
`ray.autoscaler.sdk.request_resources` is not: it asks for a size of the whole cluster, in bundles
that need not fit a node together; there is one such request for all who use the cluster, and it
outlives whoever made it.

Ray removes them when the process of the controller ends that asked, so none is ever left. Called
from threads.
"""

from __future__ import annotations

import ray
from ray.util.placement_group import PlacementGroup

from cluster.ray_backend.node_supply import NodeSupply
from cluster.ray_backend.ray_supply import node_supply
from serving.app import first_replicas
from serving.layout.generations import Generation

_NAME = "shardwise-nodes-for-a-move"  # in Ray's dashboard


class NodeRequests:
    """Requests of the controller this runs in."""

    def __init__(self) -> None:
        self._groups: list[PlacementGroup] = []

    def supply(self) -> NodeSupply:
        """What the autoscaler says."""
        return node_supply()

    def ask(self, generation: Generation, *, replicas: int) -> str:
        """Ask for nodes with room for so many replicas. Returns what was asked for, in words."""
        need = next(n for n in first_replicas(generation.plan) if n.pool == generation.pool)
        bundles = need.placement.bundles
        for _ in range(replicas):
            group = ray.util.placement_group(
                [dict(bundle) for bundle in bundles], strategy=need.placement.strategy, name=_NAME
            )
            self._groups.append(group)
        return f"{replicas} x {len(bundles)} {dict(bundles[0])} ({need.placement.strategy})"

    def waiting(self) -> frozenset[str]:
        """Ids of what has been asked for and has no place yet."""
        tables = (ray.util.placement_group_table(group) for group in self._groups)
        return frozenset(
            group.id.hex()
            for group, table in zip(self._groups, tables, strict=True)
            if table["state"] != "CREATED"
        )

    def withdraw(self) -> None:
        """Ask for nothing any more."""
        for group in self._groups:
            ray.util.remove_placement_group(group)
        self._groups = []
