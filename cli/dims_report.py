"""How are per-operator dims said to a person? Which operators, which collectives, what it gains.

Invariant: nothing is said of a layout whose operators are cut as Megatron cuts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cli.console import milliseconds
from cluster.costmodel.sharded_steps import expert_kinds
from cluster.costmodel.sharding import RESIDUAL, recipe
from cluster.costmodel.sharding_states import Collective, Experts
from cluster.costmodel.sharding_walk import ATTENTION_CORE
from cluster.model.layout import Dim, Dims, LayoutTable
from cluster.model.model_spec import ModelSpec
from rl_search.planner import RankedRow
from rl_search.pool_checks import DIMS_NOT_SERVED

_WORDS = {
    Dim.COLUMN: "along its output",
    Dim.ROW: "along its input",
    Dim.REPLICATED: "whole on every rank",
}


def dims_lines(row: RankedRow) -> Iterator[str]:
    """The chosen dims, the collectives they lead to, and their gain over the default ones."""
    dims = row.layout.dims
    if not dims:
        return
    yield f"dims: {', '.join(_said(name, dim) for name, dim in dims)}"
    yield f"  collectives of a step: {_exchanged(row)}"
    if row.default_dims is not None:
        yield f"  gain over the default dims: {_gain(row, row.default_dims)}"
    yield f"  note: {DIMS_NOT_SERVED}; plan with --engine vllm to serve"


def _said(name: str, dim: Dim) -> str:
    kind, _, operator = name.rpartition(":")
    where = f" of {kind} layers" if kind else ""
    if operator == RESIDUAL:
        return "residual stream cut by tokens"
    if operator == ATTENTION_CORE and dim is Dim.REPLICATED:
        return f"attention with all heads on every rank{where}"
    return f"{operator}{where} {_WORDS[dim]}"


def _exchanged(row: RankedRow) -> str:
    model = row.model
    experts = Experts(int(expert_kinds(model, LayoutTable.from_layouts([row.layout]))[0]))
    own, default = _counted(model, row.layout.dims, experts), _counted(model, (), experts)
    names = [c for c in Collective if own[c] or default[c]]
    return ", ".join(f"{own[c]} {c.value.replace('_', '-')} ({default[c]} before)" for c in names)


def _counted(model: ModelSpec, dims: Dims, experts: Experts) -> Counter[Collective]:
    """Collectives of the tensor-parallel ranks in one pass through all layers."""
    found: Counter[Collective] = Counter()
    for exchange, count in recipe(model, dims, experts).exchanges:
        found[exchange.collective] += count
    return found


def _gain(row: RankedRow, before: int) -> str:
    made, after = row.estimates, row.index
    figures = (
        ("TPOT", made.tpot_s, "ms"),
        ("TTFT", made.ttft_s, "ms"),
    )
    words = [
        f"{name} {milliseconds(float(values[after]))} {unit} instead of "
        f"{milliseconds(float(values[before]))} ({_percent(values, after, before)})"
        for name, values, unit in figures
    ]
    words.append(
        f"{made.tokens_per_s_per_device[after]:,.1f} tok/s/device instead of "
        f"{made.tokens_per_s_per_device[before]:,.1f} "
        f"({_percent(made.tokens_per_s_per_device, after, before)})"
    )
    return ", ".join(words)


def _percent(values: NDArray[np.float64], after: int, before: int) -> str:
    return f"{float(values[after] / values[before]) - 1.0:+.1%}"
