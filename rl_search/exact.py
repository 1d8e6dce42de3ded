"""Which layout is best, by looking at all of them? The exact answer where the space allows.

Every layout is estimated with its batch full (`max_num_seqs` requests in flight), so the batch
limits of the space are the concurrency grid. Filters are applied in order, each counting what it
alone removes: layout rules, memory, batch beyond the KV cache, TTFT, TPOT.

Invariants: kept + sum of rejections == all; a pick satisfies every filter.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.coefficients import DEFAULT, Coefficients
from cluster.costmodel.estimate import EstimateTable, estimate
from cluster.model.hardware import ClusterSpec, NodeGroup
from cluster.model.layout import LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.rules import RuleReport, check_layouts, explain
from cluster.model.workload import Slo, Workload
from rl_search.rejections import Rejection, nearest_context, nearest_memory, nearest_slo
from rl_search.space import SpaceOptions, expand, strategies

Floats = NDArray[np.float64]


class Priority(StrEnum):
    """What a pick maximises among the layouts that satisfy everything."""

    THROUGHPUT = "throughput"  # tokens/s/device
    INTERACTIVE = "interactive"  # tokens/s/user
    BALANCED = "balanced"  # their product: a percent of one is worth a percent of the other


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of the search, for one group of equal nodes."""

    model: ModelSpec
    group: NodeGroup
    workload: Workload
    slo: Slo
    options: SpaceOptions
    headroom: float
    max_model_len: int
    cross_domain_tp: bool = False
    coefficients: Coefficients = DEFAULT


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Every layout that passed the rules with its estimate; `ok` those that satisfy everything.

    `considered` counts all layouts of the space, also those whose rules failed before an estimate.
    """

    question: Question
    table: LayoutTable
    estimates: EstimateTable
    ok: NDArray[np.bool_]
    considered: int
    rejections: tuple[Rejection, ...]


def evaluate(question: Question) -> Evaluated:
    """Estimate the whole space. Never raises because nothing fits: `ok` is then all False."""
    options, slo = question.options, question.slo
    every = expand(strategies(question.model, question.group, options), options)
    report = check_layouts(
        question.model, question.group, every, cross_domain_tp=question.cross_domain_tp
    )
    rejections = [
        Rejection(rule=rule, count=count, nearest=nearest_rule(question, every, report, rule=rule))
        for rule, count in report.counts().items()
    ]
    table = every.take(report.ok)
    estimates = estimate(
        question.model,
        question.group,
        table,
        question.workload,
        concurrency=table.max_num_seqs,
        headroom=question.headroom,
        coefficients=question.coefficients,
    )
    left = np.ones(len(table), dtype=bool)
    # An engine refuses to start when its cache cannot hold one sequence of its full length.
    holds = estimates.kv_capacity_tokens >= question.max_model_len * table.dp
    filters: tuple[tuple[str, NDArray[np.bool_]], ...] = (
        ("memory", estimates.fits),
        ("kv_below_context", holds),
        ("batch_beyond_memory", estimates.running >= table.max_num_seqs),
        ("batch_below_stages", table.max_num_seqs >= table.dp * table.pp),
        ("ttft", _within(estimates.ttft_s, slo.ttft_s)),
        ("tpot", _within(estimates.tpot_s, slo.tpot_s)),
    )
    for rule, passed in filters:
        removed = left & ~passed
        if removed.any():
            nearest = ""
            if rule == "memory":
                nearest = nearest_memory(table, estimates, removed)
            elif rule == "kv_below_context":
                nearest = nearest_context(
                    table, estimates, removed, max_model_len=question.max_model_len
                )
            elif rule in ("ttft", "tpot"):
                nearest = nearest_slo(table, estimates, removed, rule=rule, slo=slo)
            rejections.append(Rejection(rule=rule, count=int(removed.sum()), nearest=nearest))
        left &= passed
    return Evaluated(
        question=question,
        table=table,
        estimates=estimates,
        ok=left,
        considered=len(every),
        rejections=tuple(rejections),
    )


def nearest_rule(question: Question, table: LayoutTable, report: RuleReport, *, rule: str) -> str:
    """What the least wrong of the layouts that `rule` rejects first is told."""
    rejected = report.first_failure == report.rules.index(rule)
    index = int(np.argmin(np.where(rejected, report.shortfall, np.inf)))
    cluster = ClusterSpec(name="", groups=(question.group,))
    found = explain(
        question.model, cluster, table.row(index), cross_domain_tp=question.cross_domain_tp
    )
    return next((v.message for v in found if v.rule == rule), "")


def score(estimates: EstimateTable, priority: Priority) -> Floats:
    """What `priority` maximises, shape (n,)."""
    if priority is Priority.THROUGHPUT:
        return estimates.tokens_per_s_per_device
    if priority is Priority.INTERACTIVE:
        return estimates.tokens_per_s_per_user
    return estimates.tokens_per_s_per_device * estimates.tokens_per_s_per_user


def ranked(evaluated: Evaluated, priority: Priority, *, top: int) -> list[int]:
    """Indices of the `top` best strategies, each at its best batch and chunk, best first."""
    indices = np.flatnonzero(evaluated.ok)
    table = evaluated.table
    values = score(evaluated.estimates, priority)[indices]
    other = evaluated.estimates.tokens_per_s_per_device[indices]
    # On a tie the smaller replica wins: more of them fit and each fails alone.
    order = indices[
        np.lexsort((table.devices_per_replica[indices], -np.round(other, 6), -np.round(values, 9)))
    ]
    chosen: list[int] = []
    seen: set[tuple[int, ...]] = set()
    for index in order:
        names = (table.tp, table.dp, table.pp, table.moe_tp, table.moe_ep)
        key = tuple(int(column[index]) for column in names)
        if key not in seen:
            seen.add(key)
            chosen.append(int(index))
            if len(chosen) == top:
                break
    return chosen


def _within(values: Floats, limit: float | None) -> NDArray[np.bool_]:
    return values <= limit if limit is not None else np.ones(len(values), dtype=bool)
