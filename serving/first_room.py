"""Have a plan's first replicas a place, or does Ray's autoscaler bring one?

Serve's own placement groups are what it is asked by: they wait, which is its demand for nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cluster.ray_backend.capacity import PoolNeed, Resources, check_capacity, lacking
from cluster.ray_backend.node_supply import NodeSupply, Refusals


class FirstRoom:
    """What the nodes lack, if anything, and what brings it. `supply`: the autoscaler's word."""

    def __init__(self, supply: Callable[[], NodeSupply]) -> None:
        self._supply = supply
        self._refusals = Refusals()
        self._lack = ""

    def check(self, needs: Sequence[PoolNeed], nodes: Sequence[Resources]) -> None:
        """Raise InputError, naming what has no place, where no autoscaler could bring a node."""
        self._lack = lacking(needs, nodes)
        if self._lack and not self._supply().manages:
            check_capacity(needs, nodes)

    def waiting(self) -> str:
        """What nodes are waited for, in words; empty where there was room from the start."""
        if not self._lack:
            return ""
        supply = self._supply()
        refused = len(self._refusals.of(supply))
        told = supply.doing or "nothing on the way yet"
        if refused:
            told = (
                f"it has no node for {refused} placement group(s) that wait, nor may add one: "
                "raise the maximum of its groups of nodes"
            )
        return f"{self._lack}; Ray's autoscaler: {told}"
