"""Where do per-operator dims gain? The other half of the `any` space, for every row of a table.

Every layout with tp > 1 stands for all assignments of dims (`sharding.walks` of them); the best is
added to the table as a row of its own, beside the Megatron one, wherever it differs. Nothing is
pruned by guesswork: layouts that fit under no dims are left out by a bound on the memory of every
assignment (the least of each operator, one after another), and a layout whose optimum is the
Megatron scheme already stands in the table.

Invariant: a row added fits the memory rules of its table, or is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.estimate import EstimateTable
from cluster.costmodel.sharded_steps import expert_kinds
from cluster.costmodel.sharding import Trellis, slots, trellises, walks
from cluster.costmodel.sharding_states import Choice, Cut, Env, Experts
from cluster.costmodel.sharding_walk import Slot
from cluster.model.layout import Dim, LayoutTable
from cluster.model.model_spec import ModelSpec
from rl_search.dims_front import Label, Price, Stages, Way, best_within
from rl_search.dims_room import Room, may_fit
from rl_search.estimate_rows import followed_by, taken
from rl_search.operator_dims import (
    DIMS,
    Chosen,
    Priced,
    Terms,
    default_codes,
    fastest,
    megatron_s,
    named,
    positions,
    weights_at,
)
from rl_search.sharded_estimate import Setting, memory_of, resharded

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_WORTH = 1e-9  # a share of the objective below which an optimum is a tie with Megatron's
_BLOCK = 4096  # rows whose terms stay in the cache


@dataclass(frozen=True, kw_only=True)
class Searched:
    """The given layouts, then those added with dims; `strategies` the search has covered."""

    table: LayoutTable
    estimates: EstimateTable
    strategies: int


def search_dims(
    setting: Setting,
    table: LayoutTable,
    others: LayoutTable | None = None,
    *,
    headroom: float,
    max_model_len: int,
) -> Searched:
    """Estimate `table` and add the best dims of every row where they beat the default ones.

    `table` holds layouts that fit under default dims, `others` those that do not, and may under
    other ones; a rank must hold a sequence of `max_model_len` tokens.
    """
    found = Searched(
        table=table,
        estimates=setting.estimate(table, headroom=headroom),
        strategies=_strategies(setting.model, table),
    )
    asked = (table, found.estimates)
    if others is not None:
        found = replace(found, strategies=found.strategies + _strategies(setting.model, others))
        memory = memory_of(setting, others, headroom=headroom)
        others = others.take(may_fit(setting, others, memory, max_model_len=max_model_len))
        if len(others):
            figures = setting.estimate_full(others, headroom=headroom)
            asked = (table.followed_by(others), followed_by(found.estimates, figures))
    fits = np.arange(len(asked[0])) < len(table)
    kinds = expert_kinds(setting.model, asked[0])
    for experts in Experts:
        rows = np.flatnonzero((kinds == experts) & (asked[0].tp > 1))
        for first in range(0, len(rows), _BLOCK):
            block = rows[first : first + _BLOCK]
            search = _Search.of(
                setting,
                experts,
                asked[0].take(block),
                taken(asked[1], block),
                fits=fits[block],
                max_model_len=max_model_len,
            )
            rows_found, codes = search.best()
            if not len(rows_found):
                continue
            better = search.table.take(rows_found).with_dims(*named(setting.model, codes))
            figures = resharded(setting, better, taken(search.estimates, rows_found))
            found = replace(
                found,
                table=found.table.followed_by(better),
                estimates=followed_by(found.estimates, figures),
            )
    return found


def _strategies(model: ModelSpec, table: LayoutTable) -> int:
    """Assignments of dims of all rows, beside the default ones."""
    kinds = expert_kinds(model, table)
    counts = [int(((kinds == experts) & (table.tp > 1)).sum()) for experts in Experts]
    return sum(n * (walks(model, experts) - 1) for n, experts in zip(counts, Experts, strict=True))


@dataclass(frozen=True, kw_only=True)
class _Search:
    """One block of rows with the same kind of experts: what its dims cost and what they hold."""

    setting: Setting
    experts: Experts
    table: LayoutTable
    estimates: EstimateTable
    terms: tuple[Terms, Terms]
    room: Room
    default_fits: Bools

    @classmethod
    def of(
        cls,
        setting: Setting,
        experts: Experts,
        table: LayoutTable,
        estimates: EstimateTable,
        *,
        fits: Bools,
        max_model_len: int,
    ) -> _Search:
        """Price everything that the walks of the rows can meet."""
        steps = setting.steps(table, estimates)
        priced = Priced.of(steps.case, steps.loads, setting.coefficients)
        careful, bold = weights_at(steps.case, steps.demand, estimates.state)
        return cls(
            setting=setting,
            experts=experts,
            table=table,
            estimates=estimates,
            terms=(priced.terms(careful), priced.terms(bold)),
            room=Room.of(setting, table, estimates.memory, max_model_len=max_model_len),
            default_fits=fits,
        )

    def best(self) -> tuple[Ints, NDArray[np.int8]]:
        """The best assignments that are worth a row beside Megatron's: (m,) rows, (slots, m) codes.

        Two of a row where its two objectives differ in theirs.
        """
        careful, bold = self.terms
        chosen, worth = self._best(careful)
        other, bolder = self._best(bold)
        bolder &= (other.codes != chosen.codes).any(axis=0)
        rows, more = np.flatnonzero(worth), np.flatnonzero(bolder)
        codes = np.concatenate([chosen.codes[:, rows], other.codes[:, more]], axis=1)
        return np.concatenate([rows, more]), codes

    def _best(self, terms: Terms) -> tuple[Chosen, Bools]:
        """The best assignment of each row under one objective, and whether it beats Megatron's."""
        model = self.setting.model
        chosen = fastest(model, self.experts, terms)
        default = megatron_s(model, self.experts, terms)
        default = np.where(self.default_fits, default, np.inf)
        worth = chosen.seconds < default * (1.0 - _WORTH)
        tight = np.flatnonzero(worth & ~self._fits(chosen.codes))
        for index, (label, tokens_cut) in zip(
            tight.tolist(), self._within_memory(terms, tight), strict=True
        ):
            worth[index] = label is not None and label.seconds < default[index] * (1.0 - _WORTH)
            if label is not None and worth[index]:
                chosen.seconds[index] = label.seconds
                chosen.codes[:, index] = self._codes(label, tokens_cut=tokens_cut)
        return chosen, worth

    def _fits(self, codes: NDArray[np.int8]) -> Bools:
        dims, listed = named(self.setting.model, codes)
        sharding = self.setting.sharding(self.table.with_dims(dims, listed))
        return self.room.fits(sharding)

    def _within_memory(self, terms: Terms, rows: Ints) -> list[tuple[Label | None, bool]]:
        """Of each of `rows` the fastest assignment that fits, and whether it cuts tokens."""
        best: list[tuple[Label | None, bool]] = [(None, False)] * len(rows)
        for tokens_cut in (False, True):
            walked = trellises(self.setting.model, self.experts, tokens_cut=tokens_cut)
            kinds = [self._ways(terms, trellis, rows) for trellis in walked] if len(rows) else []
            for position, index in enumerate(rows.tolist()):
                fixed, width = self._without_choice(index)
                label = best_within(
                    [
                        _stages(t.start, ways, position)
                        for t, ways in zip(walked, kinds, strict=True)
                    ],
                    room=float(self.room.room[index]) - fixed,
                    token_bytes=float(self.room.token_bytes[index]),
                    width=width,
                )
                if label is not None:
                    stream = float(terms.stream[tokens_cut][index])
                    label = replace(label, seconds=label.seconds + stream)
                    before = best[position][0]
                    if before is None or label.seconds < before.seconds:
                        best[position] = (label, tokens_cut)
        return best

    def _without_choice(self, index: int) -> tuple[float, float]:
        """Bytes and widest tensor of what no dim decides."""
        own = slots(self.setting.model)
        default = self.setting.sharding(self.table.take(np.array([index])), default=True)
        cuts = default.cuts[:, 0]
        rows = [r for r in range(len(cuts)) if r not in {slot.row for slot in own}]
        kinds = [
            k for k in range(self.room.held.cores.shape[1]) if k not in {slot.kind for slot in own}
        ]
        bytes_ = float(self.room.held.operators[cuts[rows], rows, index].sum())
        bytes_ += float(self.room.sequences[index] * self.room.held.cores[0, kinds, index].sum())
        return bytes_, float(self.room.held.wide[cuts[rows], rows, index].max())

    def _ways(self, terms: Terms, trellis: Trellis, rows: Ints) -> list[_Ways]:
        """The ways on from every state of every slot, priced for `rows`."""
        return [
            {
                env: [
                    (DIMS.index(s.dim), s.env, *self._priced(terms, trellis, slot, s, rows))
                    for s in steps
                ]
                for env, steps in choices.items()
            }
            for slot, choices in zip(trellis.slots, trellis.choices, strict=True)
        ]

    def _priced(
        self, terms: Terms, trellis: Trellis, slot: Slot, step: Choice, rows: Ints
    ) -> tuple[Floats, Floats, Floats]:
        """Seconds, bytes and width of one way."""
        seconds = terms.choice(trellis, slot, step)[rows]
        if slot.row < 0:
            cores = self.room.held.cores[int(step.cut is Cut.WHOLE), slot.kind]
            return seconds, self.room.sequences[rows] * cores[rows], np.zeros(len(rows))
        held = self.room.held.operators[step.cut, slot.row, rows]
        return seconds, held, self.room.held.wide[step.cut, slot.row, rows]

    def _codes(self, label: Label, *, tokens_cut: bool) -> NDArray[np.int8]:
        model = self.setting.model
        codes = default_codes(model, 1)[:, 0]
        walked = trellises(model, self.experts, tokens_cut=tokens_cut)
        codes[[p for trellis in walked for p in positions(model, trellis)]] = label.codes
        codes[-1] = DIMS.index(Dim.ROW if tokens_cut else Dim.REPLICATED)
        return codes


_Ways = dict[Env, list[tuple[int, Env, Floats, Floats, Floats]]]


def _stages(start: Env, ways: list[_Ways], position: int) -> Stages:
    """One layer kind of the row at `position` of those that `ways` are priced for."""

    def way(found: tuple[int, Env, Floats, Floats, Floats]) -> Way:
        code, env, *priced = found
        seconds, held, width = (float(column[position]) for column in priced)
        return code, env, Price(seconds, held, width)

    return Stages(
        start=start,
        ways=tuple({env: tuple(map(way, found)) for env, found in s.items()} for s in ways),
    )
