"""Why can Ray not place these bundles? The one that fits nowhere, in words.

Ray queues a placement group that no node can meet without a word, for ever. The same first fit as
`cluster.ray_backend.capacity`, over what is free now; the answer names the bundle, the most that
any node has free of what it lacks, and whether an empty node would do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Resources = Mapping[str, float]

_NODES_TOLD = 4


@dataclass(frozen=True, kw_only=True)
class NodeRoom:
    """A node: what is free on it, and what it has in all, by resource name."""

    name: str
    free: Resources
    total: Resources


def unmet(pool: str, bundles: Sequence[Resources], strategy: str, nodes: Sequence[NodeRoom]) -> str:
    """What keeps a placement group of `pool` from being placed, '' if nothing does.

    `strategy` is Ray's: STRICT_PACK asks for one node for all bundles, STRICT_SPREAD for one each.
    """
    if not nodes:
        return f"no node is there for pool {pool}"
    if strategy == "STRICT_PACK":
        together = _sum(bundles)
        if any(_fits(together, node.free) for node in nodes):
            return ""
        what = _bundle(bundles[0]) if len(bundles) == 1 else _several(bundles)
        verb = "fits" if len(bundles) == 1 else "fit together on"
        return f"{what} of pool {pool} {verb} no node: {_lacking(together, nodes)}"
    left = [(node, dict(node.free)) for node in nodes]
    for number, bundle in enumerate(bundles):
        place = next((each for each in left if _fits(bundle, each[1])), None)
        if place is None:
            which = "" if number == 0 else f" beside the {number} before it"
            rest = [NodeRoom(name=n.name, free=free, total=n.total) for n, free in left]
            told = _lacking(bundle, rest) if rest else f"only {len(nodes)} node(s) are there"
            return f"{_bundle(bundle)} of pool {pool} fits no node{which}: {told}"
        if strategy == "STRICT_SPREAD":
            left.remove(place)
        else:
            for name, amount in bundle.items():
                place[1][name] -= amount
    return ""


def _sum(bundles: Sequence[Resources]) -> dict[str, float]:
    names = {name for bundle in bundles for name in bundle}
    return {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in sorted(names)}


def _fits(need: Resources, free: Resources) -> bool:
    return all(free.get(name, 0.0) >= amount for name, amount in need.items())


def _lacking(need: Resources, nodes: Sequence[NodeRoom]) -> str:
    """Of the resource that the fewest nodes have enough of: who has most, and who has what."""
    name = min(need, key=lambda each: sum(n.free.get(each, 0.0) >= need[each] for n in nodes))
    order = sorted(nodes, key=lambda node: -node.free.get(name, 0.0))
    free, total = order[0].free.get(name, 0.0), order[0].total.get(name, 0.0)
    told = f"the freest has {free:g} of {total:g} {name} free"
    most = max(node.total.get(name, 0.0) for node in nodes)
    if most < need[name]:
        told += f", and none has {need[name]:g} in all"
    if len(order) > 1:
        each = [
            f"{node.name} {node.free.get(name, 0.0):g} of {node.total.get(name, 0.0):g}"
            for node in order[:_NODES_TOLD]
        ]
        more = len(order) - _NODES_TOLD
        told += f" ({', '.join(each)}{f', {more} more' if more > 0 else ''})"
    return told


def _bundle(bundle: Resources) -> str:
    return f"bundle {_words(bundle)}"


def _several(bundles: Sequence[Resources]) -> str:
    if all(dict(bundle) == dict(bundles[0]) for bundle in bundles):
        return f"{len(bundles)} bundles {_words(bundles[0])}"
    return f"bundles {', '.join(map(_words, bundles))}"


def _words(bundle: Resources) -> str:
    return "{" + ", ".join(f"'{name}': {amount:g}" for name, amount in bundle.items()) + "}"
