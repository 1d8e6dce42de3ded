"""What are strategies worth, and by how much do they miss? The first fidelity: the cost model.

A batch of strategies is one call of the vectorised model. Everything a plan must keep is judged as
`exact` judges it, by the same margins; what misses is told by how far it is off.

Shapes: (n,) for a batch of n.
Invariant: a strategy that `exact` accepts has shortfall 0 and the value it has there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.estimate import EstimateTable
from cluster.model.layout import LayoutTable
from cluster.model.rules import check_layouts
from rl_search.estimate_rows import spliced, taken
from rl_search.judged import judged_by
from rl_search.margins import Margins, least, memory_margins, speed_margins
from rl_search.question import Priority, Question, score
from rl_search.sharded_estimate import memory_of, resharded
from rl_search.space import ActionSpace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MOST = 100.0  # a hundred times over a limit is no different from more


@dataclass(frozen=True)
class Judged:
    """What came of n strategies.

    `value`: the objective, 0 where nothing could be estimated. `shortfall`: how far off everything
    asked for a strategy is, relative, summed over rules; 0 where it satisfies all. `bubble`: the
    share of a token's time that pipeline stages wait.
    """

    value: Floats
    shortfall: Floats
    bubble: Floats

    def __len__(self) -> int:
        return len(self.value)

    @property
    def ok(self) -> Bools:
        """Which satisfy everything."""
        return np.asarray(self.shortfall <= 0.0)

    def take(self, rows: Ints) -> Judged:
        """Some of them."""
        return Judged(*(getattr(self, column.name)[rows] for column in fields(self)))

    def followed_by(self, other: Judged) -> Judged:
        """These, then the others."""
        return Judged.joined([self, other])

    @classmethod
    def nothing(cls, n: int) -> Judged:
        """Of n strategies about which nothing is known."""
        return cls(np.zeros(n), np.ones(n), np.zeros(n))

    @classmethod
    def joined(cls, parts: Sequence[Judged]) -> Judged:
        """All of the parts, in order."""
        columns = ([getattr(part, column.name) for part in parts] for column in fields(cls))
        return cls(*(np.concatenate([np.zeros(0), *column]) for column in columns))


class Evaluator(Protocol):
    """Judges strategies of one space. Deterministic: the same actions have the same answer."""

    @property
    def space(self) -> ActionSpace:
        """Which strategies there are."""
        ...

    def judge(self, actions: Ints) -> Judged:
        """What (n, heads) actions come to, also of those that no mask allows."""
        ...


@dataclass(frozen=True, eq=False)
class CostModel:
    """Strategies by the cost model's estimate at a full batch."""

    space: ActionSpace
    priority: Priority

    def judge(self, actions: Ints) -> Judged:
        """One call of the vectorised model for those that keep the rules of a layout."""
        table, shortfall, rows = kept(self.space, actions)
        question, value, bubble = self.space.question, np.zeros(len(table)), np.zeros(len(table))
        if len(rows):
            table = table.take(rows)
            estimates = estimate_own(question, table)
            margins = memory_margins(
                table, estimates.memory, max_model_len=question.max_model_len
            ) | _speed_margins(question, table, estimates)
            shortfall[rows] = missed(margins)
            value[rows] = score(estimates, self.priority)
            bubble[rows] = waiting(estimates)
        return Judged(value, shortfall, bubble)


def kept(space: ActionSpace, actions: Ints) -> tuple[LayoutTable, Floats, Ints]:
    """The layouts of `actions`, by how much they break rules, and the rows that break none."""
    question, table = space.question, space.decode(actions)
    report = check_layouts(
        question.model, question.group, table, cross_domain_tp=question.cross_domain_tp
    )
    broken = ~report.ok | ~space.contains(actions)
    # A dim that tp does not divide breaks no rule of a layout; it is as wrong as one.
    shortfall = np.where(broken, np.maximum(report.shortfall, 1.0), report.shortfall)
    return table, shortfall, np.flatnonzero(~broken)


def missed(margins: Margins) -> Floats:
    """How far off all margins together are, 0 where every rule holds, (n,)."""
    total = -np.minimum(np.stack(list(margins.values())), 0.0).sum(axis=0)
    # What cannot be told, as of weights alone beyond the memory, is as wrong as can be.
    return np.asarray(np.where(np.isfinite(total), np.minimum(total, MOST), MOST))


def waiting(estimates: EstimateTable) -> Floats:
    """The share of a token's time that pipeline stages wait, (n,)."""
    return np.asarray(estimates.parts["bubble"] / estimates.tpot_s)


def estimate_own(question: Question, table: LayoutTable) -> EstimateTable:
    """Every row under its own dims, its batch full; rows that fit under no others too."""
    setting = question.setting()
    plain = setting.estimate(table, headroom=question.headroom)
    if table.dims is None:
        return plain
    rows = np.flatnonzero([bool(table.assignments[index]) for index in table.dims.tolist()])
    if not len(rows):
        return plain
    own, megatron = table.take(rows), taken(plain, rows)
    memory = memory_of(setting, own, headroom=question.headroom)
    margins = memory_margins(own, memory, max_model_len=question.max_model_len)
    full = np.flatnonzero(least(margins) < 0.0)
    if len(full):
        other = setting.estimate_full(own.take(full), headroom=question.headroom)
        megatron = spliced(megatron, full, other)
    return spliced(plain, rows, resharded(setting, own, megatron))


def _speed_margins(question: Question, table: LayoutTable, estimates: EstimateTable) -> Margins:
    judged = judged_by(question, table, estimates)
    return speed_margins(estimates, judged, question.slo)
