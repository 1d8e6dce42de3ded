"""Why was a layout rejected, and how near did the nearest one come? Words for counts and gaps.

Invariant: a nearest miss names a layout that the rule removed, the value, and the limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.distributions import Statistic
from cluster.costmodel.estimate import EstimateTable
from cluster.costmodel.memory import MemoryTable
from cluster.model.layout import LayoutTable
from cluster.model.workload import Slo

Floats = NDArray[np.float64]
GIB = 1024.0**3


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """`count` layouts removed by `rule`; `nearest` says which came nearest and by how much."""

    rule: str
    count: int
    nearest: str


def merge(groups: Iterable[tuple[Rejection, ...]]) -> tuple[Rejection, ...]:
    """Counts of several groups of nodes added up, the first nearest miss kept."""
    merged: dict[str, Rejection] = {}
    for entry in (entry for group in groups for entry in group):
        before = merged.get(entry.rule)
        merged[entry.rule] = Rejection(
            rule=entry.rule,
            count=entry.count + (before.count if before else 0),
            nearest=(before.nearest if before else "") or entry.nearest,
        )
    return tuple(merged.values())


def nearest_memory(table: LayoutTable, memory: MemoryTable, removed: NDArray[np.bool_]) -> str:
    """The layout whose memory is least over the limit."""
    missing = np.where(removed, memory.sequence_bytes - memory.kv_budget, np.inf)
    index = int(np.argmin(missing))
    needed = memory.weights[index] + memory.activations[index] + memory.reserved[index]
    return (
        f"{_degrees(table, index)} needs "
        f"{_gib(needed + memory.sequence_bytes[index])} per device "
        f"(weights {_gib(memory.weights[index])}, activations {_gib(memory.activations[index])}, "
        f"reserved {_gib(memory.reserved[index])}, "
        f"KV of one sequence {_gib(memory.sequence_bytes[index])}), "
        f"the limit after headroom is {_gib(memory.limit)}"
    )


def nearest_context(
    table: LayoutTable,
    memory: MemoryTable,
    removed: NDArray[np.bool_],
    *,
    max_model_len: int,
) -> str:
    """The layout whose KV cache comes nearest to one sequence of the full length."""
    tokens = memory.kv_capacity_tokens / table.dp
    index = int(np.argmax(np.where(removed, tokens, -1.0)))
    return (
        f"the KV cache of {_degrees(table, index)} holds {int(tokens[index])} tokens per rank, "
        f"fewer than the maximum model length {max_model_len}"
    )


def nearest_slo(
    table: LayoutTable,
    estimates: EstimateTable,
    removed: NDArray[np.bool_],
    *,
    rule: str,
    slo: Slo,
    statistic: Statistic = Statistic.MEAN,
) -> str:
    """The layout that misses both bounds together by the smallest factor.

    The estimates' TTFT and TPOT are of `statistic`.
    """
    of = "" if statistic is Statistic.MEAN else f"{statistic.value} "
    factor = np.zeros(len(table))
    if slo.ttft_s is not None:
        factor = np.maximum(factor, estimates.ttft_s / slo.ttft_s)
    if slo.tpot_s is not None:
        factor = np.maximum(factor, estimates.tpot_s / slo.tpot_s)
    index = int(np.argmin(np.where(removed, factor, np.inf)))
    values = {"ttft": (estimates.ttft_s, slo.ttft_s), "tpot": (estimates.tpot_s, slo.tpot_s)}
    # The rule's own miss first; the other bound too where this layout misses both.
    names = [rule, *(name for name in values if name != rule)]
    misses = [
        f"{of}{name.upper()} {seconds[index] * 1e3:.1f} ms > {limit * 1e3:g} ms"
        for name in names
        for seconds, limit in [values[name]]
        if limit is not None and seconds[index] > limit
    ]
    return (
        f"{' and '.join(misses)} with {_degrees(table, index)}, "
        f"{int(table.max_num_seqs[index])} in flight, "
        f"chunk {int(table.max_num_batched_tokens[index])}"
    )


def _degrees(table: LayoutTable, index: int) -> str:
    return table.row(index).describe().rsplit(" x", 1)[0]


def _gib(value: float | Floats) -> str:
    return f"{float(value) / GIB:.1f} GiB"
