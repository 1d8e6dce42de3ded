"""Do a plan's first replicas fit the nodes there are? Asked before anything waits for a placement.

Ray queues a placement group that can never be met without a word; here the bundle that cannot be
placed is named. First fit over nodes in order of size, which is exact for the equal bundles of one
pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.errors import InputError
from cluster.ray_backend.bundles import PlacementBundles

Resources = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class PoolNeed:
    """What one pool asks for: `replicas` placement groups of these bundles."""

    pool: str
    replicas: int
    placement: PlacementBundles


def check_capacity(needs: Sequence[PoolNeed], nodes: Sequence[Resources]) -> None:
    """Raise InputError naming the first replica that cannot be placed on the free `nodes`."""
    if lack := lacking(needs, nodes):
        raise InputError(
            f"{lack}. Fix: plan for the devices there are (`--cluster local` for this machine), "
            "or deploy on a larger cluster with --address."
        )


def lacking(needs: Sequence[PoolNeed], nodes: Sequence[Resources]) -> str:
    """The first replica that cannot be placed on the free `nodes`, in words; empty if all can."""
    free = [dict(node) for node in nodes]
    for need in needs:
        for replica in range(need.replicas):
            if not _place(need.placement, free):
                return _explain(need, replica, nodes)
    return ""


def _place(placement: PlacementBundles, free: list[dict[str, float]]) -> bool:
    """Take a replica's bundles from the free resources; changes nothing if they do not fit."""
    every = range(len(free))
    strict = placement.strategy == "STRICT_PACK"
    for candidates in [[index] for index in every] if strict else [list(every)]:
        trial = [dict(node) for node in free]
        if all(_take(bundle, [trial[i] for i in candidates]) for bundle in placement.bundles):
            free[:] = trial
            return True
    return False


def _take(bundle: Resources, nodes: list[dict[str, float]]) -> bool:
    for node in nodes:
        if all(node.get(name, 0.0) >= amount for name, amount in bundle.items()):
            for name, amount in bundle.items():
                node[name] -= amount
            return True
    return False


def _explain(need: PoolNeed, replica: int, nodes: Sequence[Resources]) -> str:
    bundles = need.placement.bundles
    where = "on one node" if need.placement.strategy == "STRICT_PACK" else "on the cluster"
    device = "GPU" if "GPU" in bundles[0] else "CPU"
    counts = [f"{node.get(device, 0.0):g}" for node in nodes]
    return (
        f"pool '{need.pool}': replica {replica + 1} of {need.replicas} needs {len(bundles)} "
        f"{device}(s) {where}; the cluster has {len(nodes)} node(s) with {', '.join(counts)} "
        f"{device}(s)"
    )
