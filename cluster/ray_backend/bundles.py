"""Which placement group does a replica need? One bundle per rank, in rank order.

Rank order is vLLM's: pipeline stage major, tensor rank minor. A replica that fits a node is
packed strictly onto one (its tensor group must share the scale-up link); a replica of several
nodes is packed, so that each stage's ranks stay together as far as Ray can place them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cluster.model.layout import Layout

Strategy = Literal["PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD"]


@dataclass(frozen=True, kw_only=True)
class PlacementBundles:
    """Bundles (resource name → amount) of one replica and Ray's strategy to place them."""

    bundles: tuple[dict[str, float], ...]
    strategy: Strategy


def replica_bundles(
    layout: Layout, *, device_kind: Literal["gpu", "cpu"], devices_per_node: int
) -> PlacementBundles:
    """Bundles of one replica of `layout`: `devices_per_replica` of them."""
    bundle = {"CPU": 1.0} if device_kind == "cpu" else {"CPU": 1.0, "GPU": 1.0}
    ranks = layout.devices_per_replica
    strategy: Strategy = "STRICT_PACK" if ranks <= devices_per_node else "PACK"
    return PlacementBundles(bundles=tuple(dict(bundle) for _ in range(ranks)), strategy=strategy)
