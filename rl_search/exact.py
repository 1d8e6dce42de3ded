"""Which layout is best, by looking at all of them? The exact answer where the space allows.

Every layout is estimated with its batch full (`max_num_seqs` requests in flight), so the batch
limits of the space are the concurrency grid. Filters are applied in order, each counting what it
alone removes: layout rules, memory, batch beyond the KV cache, TTFT, TPOT.

Invariants: kept + sum of rejections == all; a pick satisfies every filter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.distributions import Statistic
from cluster.costmodel.estimate import PLAIN, EstimateTable, Serving
from cluster.costmodel.memory import MemoryTable
from cluster.model.hardware import ClusterSpec, NodeGroup
from cluster.model.layout import LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.rules import RuleReport, check_layouts, explain
from cluster.model.workload import Slo, Workload
from rl_search.dims_search import search_dims
from rl_search.judged import judged_by
from rl_search.rejections import Rejection, nearest_context, nearest_memory, nearest_slo
from rl_search.sharded_estimate import Setting, memory_of
from rl_search.space import Space, SpaceOptions, expand, strategies

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
    coefficients: Coefficients | None = None  # None: the shipped calibration
    serving: Serving = PLAIN
    statistic: Statistic = Statistic.MEAN  # of TTFT and TPOT, that the bounds are for


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Every layout that passed the rules with its estimate; `ok` those that satisfy everything.

    `considered` counts all layouts of the space, also those whose rules failed before an estimate,
    and those added with per-operator dims. They stand for `strategies`: with every assignment of
    dims in the `any` space, as many as layouts in the other.
    """

    question: Question
    table: LayoutTable
    estimates: EstimateTable
    ok: NDArray[np.bool_]
    considered: int
    strategies: int
    rejections: tuple[Rejection, ...]


def evaluate(question: Question) -> Evaluated:
    """Estimate the whole space. Never raises because nothing fits: `ok` is then all False."""
    options = question.options
    every = expand(strategies(question.model, question.group, options), options)
    report = check_layouts(
        question.model, question.group, every, cross_domain_tp=question.cross_domain_tp
    )
    rejections = [
        Rejection(rule=rule, count=count, nearest=nearest_rule(question, every, report, rule=rule))
        for rule, count in report.counts().items()
    ]
    setting = Setting.of(
        question.model,
        question.group,
        question.workload,
        coefficients=question.coefficients,
        serving=question.serving,
    )
    obeying = every.take(report.ok)
    memory = memory_of(setting, obeying, headroom=question.headroom)
    # What is too large is told from the rest before any time is estimated, which takes longer.
    fits, too_large = _fitting(question, obeying, memory)
    rejections += too_large
    table = obeying.take(fits)
    considered = covered = len(every)
    if options.space is Space.ANY:
        others = obeying.take(~fits & (obeying.max_num_seqs >= obeying.dp * obeying.pp))
        searched = search_dims(
            setting, table, others, headroom=question.headroom, max_model_len=question.max_model_len
        )
        considered += len(searched.table) - len(table)
        covered += searched.strategies
        table, estimates = searched.table, searched.estimates
    else:
        estimates = setting.estimate(table, headroom=question.headroom)
    left, too_slow = _fast_enough(question, table, estimates)
    return Evaluated(
        question=question,
        table=table,
        estimates=estimates,
        ok=left,
        considered=considered,
        strategies=covered,
        rejections=(*rejections, *too_slow),
    )


def _fitting(
    question: Question, table: LayoutTable, memory: MemoryTable
) -> tuple[NDArray[np.bool_], list[Rejection]]:
    """Layouts that hold their weights, the longest sequence and the batch; why others do not."""
    length = question.max_model_len
    # An engine refuses to start when its cache cannot hold one sequence of its full length.
    holds = memory.kv_capacity_tokens >= length * table.dp
    filters = (
        ("memory", memory.fits, lambda out: nearest_memory(table, memory, out)),
        (
            "kv_below_context",
            holds,
            lambda out: nearest_context(table, memory, out, max_model_len=length),
        ),
        ("batch_beyond_memory", memory.max_sequences >= table.max_num_seqs, None),
        ("batch_below_stages", table.max_num_seqs >= table.dp * table.pp, None),
    )
    return _filtered(len(table), filters)


def _fast_enough(
    question: Question, table: LayoutTable, estimates: EstimateTable
) -> tuple[NDArray[np.bool_], list[Rejection]]:
    """Layouts within the bounds, and how far off the others are."""
    slo = question.slo
    judged = judged_by(
        question.statistic,
        estimates,
        model=question.model,
        group=question.group,
        table=table,
        workload=question.workload,
        coefficients=question.coefficients,
        serving=question.serving,
    )

    def nearest(rule: str) -> Callable[[NDArray[np.bool_]], str]:
        return lambda out: nearest_slo(
            table, judged, out, rule=rule, slo=slo, statistic=question.statistic
        )

    # Twice as long in line as being served: fewer in flight give the same throughput sooner.
    life = estimates.concurrency / np.maximum(estimates.requests_per_s, 1e-12)
    filters = (
        ("mostly_queueing", estimates.ttft_parts["queue"] <= _MOST_QUEUE * life, None),
        ("ttft", _within(judged.ttft_s, slo.ttft_s), nearest("ttft")),
        ("tpot", _within(judged.tpot_s, slo.tpot_s), nearest("tpot")),
    )
    return _filtered(len(table), filters)


_MOST_QUEUE = 2.0 / 3.0  # of a request's life

_Filter = tuple[str, NDArray[np.bool_], Callable[[NDArray[np.bool_]], str] | None]


def _filtered(n: int, filters: Sequence[_Filter]) -> tuple[NDArray[np.bool_], list[Rejection]]:
    """Filters in order, each counting what it alone removes."""
    left, rejections = np.ones(n, dtype=bool), []
    for rule, passed, nearest in filters:
        removed = left & ~passed
        if removed.any():
            text = "" if nearest is None else nearest(removed)
            rejections.append(Rejection(rule=rule, count=int(removed.sum()), nearest=text))
        left &= passed
    return left, rejections


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
