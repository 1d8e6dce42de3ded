"""What is wrong with a plan, what does it cost, and what mends it? Layout rules and the cost model.

Every finding compares the plan with the limits of its cluster or with the cost model's estimate
today; the checks of a single pool are in `pool_checks`.
Invariant: a plan fresh from `make_plan` on the same cluster has no findings but warnings.
"""

from __future__ import annotations

from collections.abc import Iterator

from cluster.errors import InputError
from cluster.model.hardware import ClusterSpec, NodeGroup
from cluster.model.model_spec import ModelSpec
from cluster.model.plan import Plan
from cluster.model.rules import Severity
from cluster.model.workload import Workload
from rl_search import pool_checks
from rl_search.pool_checks import GIB, Finding, Pool

__all__ = ["Finding", "check_plan", "group_of"]


def check_plan(plan: Plan, models: dict[str, ModelSpec], cluster: ClusterSpec) -> list[Finding]:
    """All findings. `models` maps pool names to the models they serve.

    Raises InputError when the plan's group is not in the cluster, or could be several of it.
    """
    group = group_of(plan, cluster)
    workload = Workload(isl=plan.workload.isl, osl=plan.workload.osl, rate=plan.workload.rate)
    found: list[Finding] = []
    pools: list[Pool] = []
    for section in plan.pools:
        model = models[section.name]
        pool = pool_checks.pool_of(section, model, group, cluster=cluster, workload=workload)
        found += pool_checks.rules(pool)
        found += pool_checks.engine_args(pool)
        found += pool_checks.serving(pool)
        if section.layout.tp < 1 or pool.layout.devices_per_replica > group.devices:
            continue  # there is nothing to estimate on
        found += pool_checks.memory(pool)
        found += pool_checks.pipeline(pool)
        found += pool_checks.latency(pool, plan.slo)
        found += pool_checks.stale(pool)
        pools.append(pool)
    if group.device.kind == "cpu":
        found += _shared_memory(pools, group)
        found += _shared_cores(plan, group)
    else:
        found += _devices(plan, cluster, group)
    return found


def group_of(plan: Plan, cluster: ClusterSpec) -> NodeGroup:
    """The group of `cluster` that the plan was made for.

    By device, nodes and devices per node; by device alone where the cluster has one such group (it
    grew or shrank). Raises InputError where no group has the device, or several of other sizes do.
    """
    section = plan.cluster
    named = [group for group in cluster.groups if group.device.name == section.device]
    size = (section.nodes, section.devices_per_node)
    same = [group for group in named if (group.nodes, group.devices_per_node) == size]
    if same:
        return same[0]
    if len(named) == 1:
        return named[0]
    if named:
        sizes = ", ".join(f"{group.nodes}x{group.devices_per_node}" for group in named)
        raise InputError(
            f"the plan is for {size[0]}x{size[1]} of '{section.device}', cluster '{cluster.name}' "
            f"has {sizes} of it. Fix: check it against the group it was made for, or plan again."
        )
    known = ", ".join(group.device.name for group in cluster.groups)
    raise InputError(
        f"the plan is for device '{section.device}', cluster '{cluster.name}' has {known}. "
        "Fix: check it against the cluster it was made for, or plan again."
    )


def _shared_memory(pools: list[Pool], group: NodeGroup) -> Iterator[Finding]:
    """CPU ranks share the cores and hold none: together they are bounded by memory."""
    sizes = [
        (pool.section.replicas.maximum * pool.layout.devices_per_replica * pool.rank_bytes, pool)
        for pool in pools
    ]
    needed = sum(size for size, _ in sizes)
    headroom = max((pool.headroom for pool in pools), default=0.0)
    limit = group.devices * group.device.memory_bytes * (1.0 - headroom)
    if needed > limit:
        listed = " + ".join(f"{size / GIB:.1f} for {pool.section.name}" for size, pool in sizes)
        yield Finding(
            pool="all",
            rule="shared_memory",
            problem=f"{listed} = {needed / GIB:.1f} GiB at most replicas, the limit after "
            f"{headroom:.0%} headroom is {limit / GIB:.1f}.",
            cost=f"{(needed - limit) / GIB:.1f} GiB too much: the machine runs out of memory",
            fix="lower replicas.maximum or max_num_seqs, or use a quantised checkpoint.",
        )


def _shared_cores(plan: Plan, group: NodeGroup) -> Iterator[Finding]:
    layout = plan.main.layout.to_layout(replicas=plan.main.replicas.maximum)
    if layout.devices > group.devices:
        yield Finding(
            pool="main",
            rule="shared_cores",
            problem=f"{layout.devices} ranks at most replicas share {group.devices} core(s).",
            cost=f"estimates give a rank a core; the last replicas add nothing, and all ranks run "
            f"at {group.devices / layout.devices:.0%} of them",
            fix=f"lower replicas.maximum to {group.devices // layout.devices_per_replica}.",
            severity=Severity.WARNING,
        )


def _devices(plan: Plan, cluster: ClusterSpec, group: NodeGroup) -> Iterator[Finding]:
    sizes = [
        (pool.replicas.maximum * pool.layout.tp * pool.layout.dp * pool.layout.pp, pool)
        for pool in plan.pools
    ]
    needed = sum(size for size, _ in sizes)
    if needed > group.devices:
        listed = " + ".join(f"{size} for {pool.name}" for size, pool in sizes)
        yield Finding(
            pool="all",
            rule="devices",
            problem=f"{listed} = {needed} devices at most replicas, {cluster.name} has "
            f"{group.devices} of {group.device.name}.",
            cost=f"{needed - group.devices} device(s) short: the last replicas never start",
            fix="lower replicas.maximum, or use a larger cluster.",
        )
