"""What does each operator do under a layout's dims, and what do the dims gain? In seconds.

The same layout under its own dims and under Megatron's, each at the operating point where it
settles: by part of TPOT, and by operator in the two kinds of step, without and with prompts.

Invariants: the walk of all operators is that of `sharding.recipe`; parts sum to TPOT; operators sum
to how much longer or shorter a step is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cluster.costmodel.estimate import EstimateTable
from cluster.costmodel.sharded_steps import Moves, Prices, expert_kinds, prices
from cluster.costmodel.sharding import RESIDUAL, read, trellises
from cluster.costmodel.sharding_states import Choice, Cut, Experts
from cluster.costmodel.sharding_walk import Slot
from cluster.model.layout import Dims, Layout, LayoutTable
from cluster.model.model_spec import ModelSpec
from rl_search.evaluator import estimate_own
from rl_search.margins import memory_margins
from rl_search.question import Question


@dataclass(frozen=True)
class Walked:
    """One operator of a layer kind of `layers` layers, and the way it goes through it."""

    slot: Slot
    layers: int
    choice: Choice


@dataclass(frozen=True, kw_only=True)
class PartGain:
    """One part of TPOT, seconds per output token: under the layout's dims, and Megatron's."""

    part: str
    seconds: float
    megatron_s: float

    @property
    def gained_s(self) -> float:
        """What the dims save; negative where they cost."""
        return self.megatron_s - self.seconds


@dataclass(frozen=True, kw_only=True)
class StepGain:
    """Seconds of one step: of kernels, and of exchanges (the stream's between stages too)."""

    kernel_s: float
    megatron_kernel_s: float
    exchange_s: float
    megatron_exchange_s: float

    @property
    def gained_s(self) -> float:
        """What the dims save; negative where they cost."""
        before = self.megatron_kernel_s + self.megatron_exchange_s
        return before - self.kernel_s - self.exchange_s

    def __add__(self, other: StepGain) -> StepGain:
        return StepGain(
            kernel_s=self.kernel_s + other.kernel_s,
            megatron_kernel_s=self.megatron_kernel_s + other.megatron_kernel_s,
            exchange_s=self.exchange_s + other.exchange_s,
            megatron_exchange_s=self.megatron_exchange_s + other.megatron_exchange_s,
        )


@dataclass(frozen=True, kw_only=True)
class OperatorGain:
    """One operator in all layers of its kind: in a step without, and in one with prompts."""

    kind: str
    operator: str
    decode: StepGain
    mixed: StepGain


@dataclass(frozen=True, kw_only=True)
class Gains:
    """A layout under its dims against the same layout under Megatron's.

    `megatron_fits`: whether it has room for its batch under those; its figures are otherwise those
    of the batch that it has room for.
    """

    tpot_s: float
    megatron_tpot_s: float
    tokens_per_s_per_device: float
    megatron_tokens_per_s_per_device: float
    megatron_fits: bool
    parts: tuple[PartGain, ...]
    operators: tuple[OperatorGain, ...]


def gains(question: Question, layout: Layout) -> Gains:
    """What the dims of `layout` gain: by part of TPOT, and by operator of the two kinds of step.

    Parts and operators with the largest change first.
    """
    table = LayoutTable.from_layouts([layout, replace(layout, dims=())])
    made = estimate_own(question, table)
    margins = memory_margins(table, made.memory, max_model_len=question.max_model_len)
    parts = [
        PartGain(part=name, seconds=float(part[0]), megatron_s=float(part[1]))
        for name, part in made.parts.items()
    ]
    operators = [] if layout.tp == 1 else list(_operator_gains(question, layout, table, made))
    return Gains(
        tpot_s=float(made.tpot_s[0]),
        megatron_tpot_s=float(made.tpot_s[1]),
        tokens_per_s_per_device=float(made.tokens_per_s_per_device[0]),
        megatron_tokens_per_s_per_device=float(made.tokens_per_s_per_device[1]),
        megatron_fits=bool(np.stack(list(margins.values())).min(axis=0)[1] >= 0.0),
        parts=tuple(sorted(parts, key=lambda part: -abs(part.gained_s))),
        operators=tuple(sorted(operators, key=_change_s)),
    )


def experts_of(model: ModelSpec, layout: Layout) -> Experts:
    """What the layout does with routed experts."""
    return Experts(int(expert_kinds(model, LayoutTable.from_layouts([layout]))[0]))


def both_walks(model: ModelSpec, layout: Layout) -> Iterator[tuple[Walked, Walked]]:
    """Each slot under the layout's dims, and under Megatron's."""
    experts = experts_of(model, layout)
    own, plain = _walked(model, layout.dims, experts), _walked(model, (), experts)
    yield from zip(own, plain, strict=True)


def _walked(model: ModelSpec, dims: Dims, experts: Experts) -> Iterator[Walked]:
    """The walk that `sharding.recipe` sums up, operator by operator."""
    chosen, tokens_cut = read(model, dims)
    for trellis in trellises(model, experts, tokens_cut=tokens_cut):
        env = trellis.start
        for slot, stage in zip(trellis.slots, trellis.choices, strict=True):
            options = stage[env]
            choice = next((c for c in options if c.dim is chosen[slot]), options[0])
            yield Walked(slot, trellis.count, choice)
            env = choice.env


def _change_s(gain: OperatorGain) -> float:
    return -abs(gain.decode.gained_s) - abs(gain.mixed.gained_s)


def _operator_gains(
    question: Question, layout: Layout, table: LayoutTable, made: EstimateTable
) -> Iterator[OperatorGain]:
    """The terms that the two rows of `table` are made of, each at its own operating point."""
    setting = question.setting()
    steps = setting.steps(table, made)
    case, loads = steps.case, steps.loads
    decode, mixed = (
        list(
            _step_gains(
                Moves(case=case, load=load, coefficients=setting.coefficients),
                setting.model,
                layout,
            )
        )
        for load in loads
    )
    names = [
        (setting.model.layers[step.slot.kind][0].name, step.slot.name)
        for step, _ in both_walks(setting.model, layout)
    ]
    for (kind, name), one, other in zip([*names, ("", RESIDUAL)], decode, mixed, strict=True):
        yield OperatorGain(kind=kind, operator=name, decode=one, mixed=other)


def _step_gains(moves: Moves, model: ModelSpec, layout: Layout) -> Iterator[StepGain]:
    """Slot by slot, the residual stream last."""
    priced = prices(moves.case, moves.load, moves.coefficients)

    def moved(step: Walked, row: int) -> float:
        once = sum(float(moves.exchange_s(each)[row]) for each in step.choice.exchanges)
        return step.layers * once

    for step, plain in both_walks(model, layout):
        yield StepGain(
            kernel_s=_kernel_s(priced, step, 0),
            megatron_kernel_s=_kernel_s(priced, plain, 1),
            exchange_s=moved(step, 0),
            megatron_exchange_s=moved(plain, 1),
        )
    _, tokens_cut = read(model, layout.dims)
    own, before = moves.stream_s(tokens_cut=tokens_cut), moves.stream_s(tokens_cut=False)
    yield StepGain(
        kernel_s=float(own["elementwise"][0]),
        megatron_kernel_s=float(before["elementwise"][1]),
        exchange_s=sum(float(s[0]) for name, s in own.items() if name != "elementwise"),
        megatron_exchange_s=sum(float(s[1]) for name, s in before.items() if name != "elementwise"),
    )


def _kernel_s(priced: Prices, step: Walked, row: int) -> float:
    if step.slot.row < 0:
        return float(priced.cores[int(step.choice.cut is Cut.WHOLE), step.slot.kind, row])
    return float(priced.operators[step.choice.cut, step.slot.row, row])
