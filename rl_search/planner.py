"""From a question to a plan: search every group of the cluster, rank, and write down the winner.

A replica never spans two groups, so each group is searched alone and the best pick wins. The
cluster is filled: maximum replicas = devices // devices per replica, unless told otherwise. A light
pool takes its devices from the main one, except on CPU cores, which ranks share.

Invariants: the plan's layout is the first ranked row; main and light pools fit together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.estimate import EstimateTable
from cluster.errors import InfeasibleError
from cluster.model.hardware import NodeGroup
from cluster.model.layout import Layout
from cluster.model.model_spec import ModelSpec
from cluster.model.plan import Plan, PoolSection
from rl_search.exact import Evaluated, Priority, Question, evaluate, ranked, score
from rl_search.pareto import frontier
from rl_search.plan_writer import PoolRequest, plan_of, pool_bytes, pool_of
from rl_search.rejections import Rejection, merge
from rl_search.request import PlanRequest, check_request, context_of, nothing_fits
from rl_search.space import options_for


@dataclass(frozen=True, kw_only=True)
class RankedRow:
    """A layout of the ranking, with its row in the estimates of its group."""

    layout: Layout
    group: NodeGroup
    estimates: EstimateTable
    index: int


@dataclass(frozen=True, kw_only=True)
class FrontierPoints:
    """The throughput-interactivity frontier: (k,) arrays and the layouts behind them."""

    tokens_per_s_per_user: NDArray[np.float64]
    tokens_per_s_per_device: NDArray[np.float64]
    layouts: tuple[Layout, ...]


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """The plan and what it was chosen from."""

    plan: Plan
    rows: tuple[RankedRow, ...]
    frontier: FrontierPoints
    considered: int
    satisfying: int
    rejections: tuple[Rejection, ...]


def make_plan(request: PlanRequest) -> PlanResult:
    """Search and plan.

    Raises InputError when the request contradicts the model, InfeasibleError with the nearest
    miss when no layout satisfies it.
    """
    check_request(request)
    light = None if request.light is None else _smallest(request, request.light)
    light_devices = 0
    if light is not None and light.group.device.kind != "cpu":  # CPU ranks share their cores
        light_devices = light.layout.devices_per_replica
    evaluated = [
        _search(_question(request, request.model, group, spare=light_devices))
        for group in request.cluster.groups
        if group.devices > light_devices
    ]
    if not evaluated:
        raise InfeasibleError(
            f"the light pool takes all {light_devices} device(s) of every group of "
            f"{request.cluster.name}. Fix: use a larger cluster, or plan without a light model."
        )
    found = [
        (float(score(item.estimates, request.priority)[index]), _row(item, index))
        for item in evaluated
        for index in ranked(item, request.priority, top=request.top)
    ]
    rejections = merge(item.rejections for item in evaluated)
    if not found:
        considered = sum(item.considered for item in evaluated)
        raise InfeasibleError(nothing_fits(request, rejections, considered=considered))
    found.sort(key=lambda pair: -pair[0])
    rows = tuple(row for _, row in found[: request.top])
    return PlanResult(
        plan=_plan(request, rows[0], light, light_devices),
        rows=rows,
        frontier=_frontier(evaluated),
        considered=sum(item.considered for item in evaluated),
        satisfying=sum(int(item.ok.sum()) for item in evaluated),
        rejections=rejections,
    )


def _search(question: Question) -> Evaluated:
    """The whole space, or that of the fallback batches where nothing in it satisfies."""
    found = evaluate(question)
    smaller = question.options.fallback_batches
    if found.ok.any() or not smaller:
        return found
    return evaluate(replace(question, options=replace(question.options, batches=smaller)))


def _row(evaluated: Evaluated, index: int) -> RankedRow:
    return RankedRow(
        layout=evaluated.table.row(index),
        group=evaluated.question.group,
        estimates=evaluated.estimates,
        index=index,
    )


def _question(
    request: PlanRequest, model: ModelSpec, group: NodeGroup, *, spare: int = 0
) -> Question:
    return Question(
        model=model,
        group=group,
        workload=request.workload,
        slo=request.slo,
        options=options_for(
            group,
            space=request.space,
            max_devices=group.devices - spare,
            max_dp=request.max_dp,
        ),
        headroom=request.headroom,
        max_model_len=min(context_of(request), model.max_context),
        cross_domain_tp=request.cross_domain_tp,
        coefficients=request.coefficients,
    )


def _smallest(request: PlanRequest, model: ModelSpec) -> RankedRow:
    """The light model on the fewest devices that satisfy the SLO, in the first group that does."""
    reasons: list[str] = []
    for group in request.cluster.groups:
        found = _search(_question(request, model, group))
        if found.ok.any():
            sizes = found.table.devices_per_replica
            least = replace(found, ok=found.ok & (sizes == sizes[found.ok].min()))
            return _row(least, ranked(least, Priority.THROUGHPUT, top=1)[0])
        reasons += [r.nearest for r in found.rejections if r.nearest]
    raise InfeasibleError(f"no layout of the light model {model.name} fits: {'; '.join(reasons)}.")


def _plan(
    request: PlanRequest, best: RankedRow, light: RankedRow | None, light_devices: int
) -> Plan:
    shared: float | None = None
    if best.group.device.kind == "cpu":
        shared = best.group.devices * best.group.device.memory_bytes * (1.0 - request.headroom)
    pools: list[PoolSection] = []
    if light is not None and request.light is not None:
        pools.append(_light_pool(request, request.light, light, shared))
        if shared is not None:
            shared -= pool_bytes(pools[0])
    beside = (best.group.devices - light_devices) // best.layout.devices_per_replica
    main = PoolRequest(
        name="main",
        model=request.model,
        served_name=request.served_name or request.model.name,
        source=request.source or request.model.name,
        slo=request.slo,
        context=request.workload.isl + request.workload.osl,
        max_model_len=context_of(request),
        headroom=request.headroom,
        room=min(best.layout.replicas, beside),  # as many as pack into the scale-up domains
        shared_bytes=shared,
        minimum=request.min_replicas,
        maximum=request.max_replicas,
        rate=request.workload.rate,
    )
    pools.insert(0, _pool(main, best))
    return plan_of(
        request.cluster_text or request.cluster.name,
        best.group,
        workload=request.workload,
        slo=request.slo,
        pools=tuple(pools),
    )


def _light_pool(
    request: PlanRequest, model: ModelSpec, row: RankedRow, shared: float | None
) -> PoolSection:
    light = PoolRequest(
        name="light",
        model=model,
        served_name=request.light_name or model.name,
        source=request.light_source or model.name,
        slo=request.slo,
        context=request.workload.isl + request.workload.osl,
        max_model_len=min(context_of(request), model.max_context),
        headroom=request.headroom,
        room=1,
        shared_bytes=shared,
        minimum=0,
        maximum=1,
        rate=None,
    )
    return _pool(light, row)


def _pool(request: PoolRequest, row: RankedRow) -> PoolSection:
    return pool_of(request, row.layout, row.group, estimates=row.estimates, index=row.index)


def _frontier(evaluated: list[Evaluated]) -> FrontierPoints:
    users = np.concatenate([e.estimates.tokens_per_s_per_user[e.ok] for e in evaluated])
    devices = np.concatenate([e.estimates.tokens_per_s_per_device[e.ok] for e in evaluated])
    owners = [(e, int(i)) for e in evaluated for i in np.flatnonzero(e.ok)]
    chosen = frontier(users, devices)
    return FrontierPoints(
        tokens_per_s_per_user=users[chosen],
        tokens_per_s_per_device=devices[chosen],
        layouts=tuple(owners[int(i)][0].table.row(owners[int(i)][1]) for i in chosen),
    )
