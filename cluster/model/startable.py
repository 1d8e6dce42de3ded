"""Could a replica of a plan start at all? What the model's numbers allow, not what is wise.

`shardwise check` says what a plan costs; this is asked where a plan leaves our hands, since one
that was edited may fail minutes later, on another machine and in an engine's words.
"""

from __future__ import annotations

from dataclasses import replace

from cluster.errors import InputError, ShardwiseError
from cluster.model.cluster_file import parse_cluster
from cluster.model.hardware import ClusterSpec
from cluster.model.plan import ClusterSection, Plan, PoolSection
from cluster.model.planned import planned_group, planned_model
from cluster.model.rules import explain

# Rules that a replica breaks at a price, and starts.
_ONLY_COSTS = frozenset({"domain", "packing", "batch"})
# As a layout and as the engine's arguments call them.
DEGREES = (
    ("tp", "tensor_parallel_size"),
    ("pp", "pipeline_parallel_size"),
    ("dp", "data_parallel_size"),
)


def must_start(plan: Plan) -> None:
    """Raise InputError for a plan of which `unstartable` says something."""
    if (problem := unstartable(plan)) is not None:
        raise InputError(
            f"{problem} `shardwise check` lists all that is wrong with a plan, and its cost."
        )


def unstartable(plan: Plan) -> str | None:
    """The first pool of which no replica could start, or would with another layout, and the fix.

    A model that is not in reach, or a device described in a file that is not, is taken on trust.
    """
    for pool in plan.pools:
        problem = _other_degrees(pool) or _unfit(pool, plan.cluster)
        if problem is not None:
            return f"pool '{pool.name}' of the plan: {problem}"
    return None


def _other_degrees(pool: PoolSection) -> str | None:
    for degree, argument in DEGREES:
        planned = getattr(pool.layout, degree)
        given = pool.engine_args.get(argument, planned)
        if given != planned:
            return (
                f"engine_args.{argument} is {given!r}, its layout says {degree} = {planned}. "
                "Fix: make them the same, or plan again."
            )
    return None


def _unfit(pool: PoolSection, cluster: ClusterSection) -> str | None:
    try:
        model, spec = planned_model(pool, source="the plan"), _spec(cluster)
    except ShardwiseError:
        return None
    layout = replace(pool.layout.to_layout(replicas=1), replicas=1)
    for broken in explain(model, spec, layout, cross_domain_tp=True):
        if broken.rule not in _ONLY_COSTS:
            return f"{broken.message} Fix: {broken.fix}"
    return None


def _spec(cluster: ClusterSection) -> ClusterSpec:
    """By the catalogue, or by the file that the plan was made with."""
    try:
        return ClusterSpec(name=cluster.spec, groups=(planned_group(cluster),))
    except ShardwiseError:
        return parse_cluster(cluster.spec)
