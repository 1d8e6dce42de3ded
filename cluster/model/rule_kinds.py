"""What a validity rule is, and the two margins most rules are: a limit and a multiple.

`Shape` holds what rules need of a model, each number once: a model of many layer kinds has few
distinct head counts and widths. Margins are relative, >= 0 exactly where the rule holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.model.hardware import NodeGroup
from cluster.model.layout import Ints, Layout, LayoutTable
from cluster.model.model_spec import AttentionKind, Group, ModelSpec

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The numbers of a model and a group that rules compare degrees with."""

    group: NodeGroup
    cross_domain_tp: bool
    layers: int
    padded_vocab: int
    experts: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    linear_key_heads: tuple[int, ...]
    feed_forward: tuple[int, ...]
    expert_width: tuple[int, ...]

    @classmethod
    def of(cls, model: ModelSpec, group: NodeGroup, *, cross_domain_tp: bool) -> Shape:
        """Collect them, distinct and sorted."""
        kinds = [kind for kind, _ in model.layers]
        operators = [op for kind in kinds for op in kind.operators]
        attentions = [kind.attention for kind in kinds]
        linear = [a for a in attentions if a.kind is AttentionKind.LINEAR]
        softmax = [a for a in attentions if a.kind is not AttentionKind.LINEAR]
        # The second matrix of a feed-forward has the intermediate width as its input.
        down = [op for op in operators if op.name.endswith("_down") and op.cols == model.hidden]
        experts = [op for op in down if op.group is Group.EXPERTS]
        return cls(
            group=group,
            cross_domain_tp=cross_domain_tp,
            layers=model.num_layers,
            padded_vocab=-(-model.vocab // VOCAB_PADDING) * VOCAB_PADDING,
            experts=model.experts,
            heads=_distinct(a.heads for a in attentions),
            kv_heads=_distinct(a.kv_heads for a in softmax),
            linear_key_heads=_distinct(a.kv_heads for a in linear),
            feed_forward=_distinct(
                op.rows for op in down if op.group in (Group.DENSE, Group.SHARED)
            ),
            expert_width=_distinct(op.rows for op in experts),
        )


# vLLM pads the vocabulary to a multiple of this before it splits it over tp.
VOCAB_PADDING = 64


@dataclass(frozen=True)
class Rule:
    """`margin(shape, table)` -> (n,), and `explain(shape, layout)` -> (message, fix)."""

    name: str
    margin: Callable[[Shape, LayoutTable], Floats]
    explain: Callable[[Shape, Layout], tuple[str, str]]


def limit_margin(need: Ints, *, limit: int) -> Floats:
    """(limit - need) / limit, shape (n,)."""
    return np.asarray((limit - need) / limit, dtype=np.float64)


def multiple_margin(value: Ints, *, of: Ints) -> Floats:
    """0 where `value` is a positive multiple of `of`, else minus remainder / divisor."""
    divisor = np.maximum(of, 1)
    remainder = np.where(value < divisor, np.maximum(divisor - value, 0), value % divisor)
    return np.asarray(-(remainder / divisor), dtype=np.float64)


def worst_multiple(values: tuple[int, ...], *, of: Ints) -> Floats:
    """The smallest `multiple_margin` of several values, 0 where there are none."""
    margin = np.zeros(len(of))
    for value in values:
        margin = np.minimum(margin, multiple_margin(np.full(len(of), value), of=of))
    return margin


def first_not_multiple(values: tuple[int, ...], *, of: int) -> int:
    """The value that `worst_multiple` complains about."""
    return next(value for value in values if value % of)


def divisors_near(value: int, *, below: int) -> str:
    """The largest divisors of `value` up to `below`, for a fix: `4 or 2`."""
    found = [d for d in range(min(value, below), 0, -1) if value % d == 0][:2]
    return " or ".join(str(d) for d in found)


def _distinct(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(values)))
