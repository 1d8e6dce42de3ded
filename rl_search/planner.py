"""From a question to a plan: search every group of the cluster, rank, and write down the winner.

A replica never spans two groups, so each group is searched alone and the best pick wins. The
cluster is filled: maximum replicas = devices // devices per replica, unless told otherwise. A light
pool lives in the group of the main one and takes its devices from it, except on CPU cores, which
ranks share; a group where the light model does not fit is no candidate.

Invariants: the plan's layout is the first ranked row; main and light pools fit one group together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.distributions import Statistic
from cluster.costmodel.estimate import EstimateTable
from cluster.errors import InfeasibleError
from cluster.model.hardware import NodeGroup
from cluster.model.layout import Layout, LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.plan import Plan, PoolSection
from cluster.model.workload import Slo
from rl_search.enumeration import options_for
from rl_search.evaluator import estimate_own
from rl_search.exact import Evaluated, evaluate, ranked
from rl_search.pareto import frontier
from rl_search.plan_writer import PoolRequest, plan_of, pool_bytes, pool_of
from rl_search.question import Priority, Question, score
from rl_search.rejections import Rejection, merge
from rl_search.request import PlanRequest, check_request, context_of, nothing_fits
from rl_search.serving_args import plain, with_serving


@dataclass(frozen=True, kw_only=True)
class RankedRow:
    """A layout of the ranking for `model`, with its row in the estimates of its group.

    `default_dims`: the row of the same layout under default dims, where its own are others.
    """

    model: ModelSpec
    layout: Layout
    group: NodeGroup
    estimates: EstimateTable
    index: int
    default_dims: int | None = None


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
    strategies: int
    satisfying: int
    rejections: tuple[Rejection, ...]


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A group searched for the main model, beside the light pool that it would get there."""

    evaluated: Evaluated
    light: RankedRow | None
    reserved: int  # devices that the light pool holds


def make_plan(request: PlanRequest) -> PlanResult:
    """Search and plan.

    Raises InputError when the request contradicts the model, InfeasibleError with the nearest
    miss when no layout satisfies it.
    """
    check_request(request)
    candidates, skipped = _candidates(request)
    if not candidates:
        raise InfeasibleError(
            f"no group of {request.cluster.name} has room for the light pool and the main one: "
            f"{'; '.join(skipped)}. Fix: use a larger cluster, or plan without a light model."
        )
    evaluated = [candidate.evaluated for candidate in candidates]
    found = [
        (float(score(item.estimates, request.priority)[index]), candidate, _row(item, index))
        for candidate, item in zip(candidates, evaluated, strict=True)
        for index in ranked(item, request.priority, top=request.top)
    ]
    rejections = merge(item.rejections for item in evaluated)
    if not found:
        considered = sum(item.considered for item in evaluated)
        message = nothing_fits(request, rejections, considered=considered)
        if skipped:
            message += f" Groups without room for the light pool: {'; '.join(skipped)}."
        raise InfeasibleError(message)
    found.sort(key=lambda entry: -entry[0])
    rows = tuple(row for _, _, row in found[: request.top])
    chosen = found[0][1]
    return PlanResult(
        plan=_plan(request, rows[0], chosen.light, chosen.reserved),
        rows=rows,
        frontier=_frontier(evaluated),
        considered=sum(item.considered for item in evaluated),
        strategies=sum(item.strategies for item in evaluated),
        satisfying=sum(int(item.ok.sum()) for item in evaluated),
        rejections=rejections,
    )


def row_of(request: PlanRequest, layout: Layout) -> RankedRow:
    """A layout found by other means on the request's only group, with its estimate."""
    group = request.cluster.groups[0]
    question = question_of(request)
    return RankedRow(
        model=request.model,
        layout=layout,
        group=group,
        estimates=estimate_own(question, LayoutTable.from_layouts([layout])),
        index=0,
    )


def plan_of_row(request: PlanRequest, row: RankedRow) -> Plan:
    """The plan that serves a layout, without a light pool."""
    return _plan(request, row, None, 0)


def question_of(request: PlanRequest) -> Question:
    """The request as a question on its only group."""
    return _question(request, request.model, request.cluster.groups[0])


def _candidates(request: PlanRequest) -> tuple[list[_Candidate], list[str]]:
    """The searched groups, and of each other group why the light pool leaves no room in it."""
    candidates: list[_Candidate] = []
    skipped: list[str] = []
    for group in request.cluster.groups:
        light: RankedRow | None = None
        reserved = 0
        where = f"{group.devices} x {group.device.name}"
        if request.light is not None:
            light, reason = _smallest(request, request.light, group)
            if light is None:
                skipped.append(f"on {where} no layout of {request.light.name} fits ({reason})")
                continue
            if group.device.kind != "cpu":  # CPU ranks share their cores
                reserved = light.layout.devices_per_replica
            if reserved >= group.devices:
                skipped.append(f"the light pool takes all {reserved} device(s) of {where}")
                continue
        evaluated = _search(_question(request, request.model, group, spare=reserved))
        candidates.append(_Candidate(evaluated=evaluated, light=light, reserved=reserved))
    return candidates, skipped


def _search(question: Question) -> Evaluated:
    """The whole space, or that of the fallback batches where nothing in it satisfies."""
    found = evaluate(question)
    smaller = question.options.fallback_batches
    if found.ok.any() or not smaller:
        return found
    return evaluate(replace(question, options=replace(question.options, batches=smaller)))


def _row(evaluated: Evaluated, index: int) -> RankedRow:
    return RankedRow(
        model=evaluated.question.model,
        layout=evaluated.table.row(index),
        group=evaluated.question.group,
        estimates=evaluated.estimates,
        index=index,
        default_dims=evaluated.table.under_default_dims(index),
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
        serving=request.serving,
        statistic=request.statistic,
    )


def _smallest(
    request: PlanRequest, model: ModelSpec, group: NodeGroup
) -> tuple[RankedRow | None, str]:
    """The light model on the fewest devices of `group` that satisfy the SLO, or None and why."""
    question = _question(request, model, group)
    found = _search(replace(question, serving=plain(request.serving)))
    if not found.ok.any():
        misses = [r.nearest for r in found.rejections if r.nearest]
        return None, misses[-1] if misses else "every layout fails a divisibility rule"
    sizes = found.table.devices_per_replica
    least = replace(found, ok=found.ok & (sizes == sizes[found.ok].min()))
    return _row(least, ranked(least, Priority.THROUGHPUT, top=1)[0]), ""


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
        slo=_bounds_of_means(request),
        context=request.workload.isl + request.workload.osl,
        max_model_len=context_of(request),
        headroom=request.headroom,
        room=min(best.layout.replicas, beside),  # as many as pack into the scale-up domains
        shared_bytes=shared,
        minimum=request.min_replicas,
        maximum=request.max_replicas,
        rate=request.workload.rate,
    )
    served = with_serving(
        _pool(main, best),
        request.serving,
        drafter=request.drafter,
        prefix_hit=request.workload.prefix_hit,
    )
    pools.insert(0, served)
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
        slo=_bounds_of_means(request),
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


def _bounds_of_means(request: PlanRequest) -> Slo:
    """Bounds that the expected means keep: none where picks keep those of a percentile."""
    return request.slo if request.statistic is Statistic.MEAN else Slo()


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
