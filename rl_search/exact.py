"""Which layout is best, by looking at all of them? The exact answer where the space allows.

Every layout is estimated with its batch full (`max_num_seqs` requests in flight), so the batch
limits of the space are the concurrency grid. Filters are applied in order, each counting what it
alone removes: layout rules, memory, batch beyond the KV cache, TTFT, TPOT.

Invariants: kept + sum of rejections == all; a pick satisfies every filter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.estimate import EstimateTable
from cluster.costmodel.memory import MemoryTable
from cluster.model.hardware import ClusterSpec
from cluster.model.layout import LayoutTable
from cluster.model.rules import RuleReport, check_layouts, explain
from rl_search.dims_search import search_dims
from rl_search.enumeration import Space, expand, strategies
from rl_search.judged import judged_by
from rl_search.margins import Margins, least, limit_margins, memory_margins, speed_margins
from rl_search.question import Priority, Question, score
from rl_search.rejections import Rejection, nearest_context, nearest_memory, nearest_slo
from rl_search.sharded_estimate import memory_of

Floats = NDArray[np.float64]


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
    setting = question.setting()
    obeying = every.take(report.ok)
    memory = memory_of(setting, obeying, headroom=question.headroom)
    # What is too large is told from the rest before any time is estimated, which takes longer.
    fits, too_large = _fitting(question, obeying, memory)
    rejections += too_large
    table = obeying.take(fits)
    considered = covered = len(every)
    if options.space is Space.ANY:
        others = obeying.take(~fits & (least(limit_margins(obeying)) >= 0.0))
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
    margins = memory_margins(table, memory, max_model_len=length)
    nearest: dict[str, _Nearest] = {
        "memory": lambda out: nearest_memory(table, memory, out),
        "kv_below_context": lambda out: nearest_context(table, memory, out, max_model_len=length),
    }
    return _filtered(len(table), margins, nearest)


def _fast_enough(
    question: Question, table: LayoutTable, estimates: EstimateTable
) -> tuple[NDArray[np.bool_], list[Rejection]]:
    """Layouts within the bounds, and how far off the others are."""
    slo = question.slo
    judged = judged_by(question, table, estimates)

    def nearest(rule: str) -> _Nearest:
        return lambda out: nearest_slo(
            table, judged, out, rule=rule, slo=slo, statistic=question.statistic
        )

    margins = speed_margins(estimates, judged, slo)
    return _filtered(len(table), margins, {rule: nearest(rule) for rule in ("ttft", "tpot")})


_Nearest = Callable[[NDArray[np.bool_]], str]


def _filtered(
    n: int, margins: Margins, nearest: Mapping[str, _Nearest]
) -> tuple[NDArray[np.bool_], list[Rejection]]:
    """Rules in order, each counting what it alone removes."""
    left, rejections = np.ones(n, dtype=bool), []
    for rule, margin in margins.items():
        removed = left & (margin < 0.0)
        if removed.any():
            text = nearest[rule](removed) if rule in nearest else ""
            rejections.append(Rejection(rule=rule, count=int(removed.sum()), nearest=text))
        left &= margin >= 0.0
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
