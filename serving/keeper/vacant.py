"""Which nodes have held nothing of ours for so long that we leave them?

Ray's autoscaler takes away a node only while no actor is on it, one that asks for nothing included.
So where nodes come and go with the replicas, keeper and weight store go after them. The head stays:
it is nobody's to take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from cluster.ray_backend.unmet import NodeRoom
from serving.keeper.ray_cluster import Rank

HEAD = "node:__internal_head__"  # Ray's own resource of that node


class Vacant:
    """`leave_s`: how long a node must have held nothing, None: nodes are never left."""

    def __init__(self, leave_s: float | None, *, clock: Callable[[], float]) -> None:
        self._leave_s = leave_s
        self._clock = clock
        self._since_s: dict[str, float] = {}

    def nodes(self, rooms: Mapping[str, NodeRoom], ranks: Iterable[Rank]) -> frozenset[str]:
        """Those to be left, of the living ones."""
        held = {rank.node_id for rank in ranks}
        now_s = self._clock()
        self._since_s = {
            node_id: self._since_s.get(node_id, now_s)
            for node_id, room in rooms.items()
            if node_id not in held and HEAD not in room.total
        }
        if self._leave_s is None:
            return frozenset()
        return frozenset(
            node_id
            for node_id, since_s in self._since_s.items()
            if now_s - since_s >= self._leave_s
        )
