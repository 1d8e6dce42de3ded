"""Which layouts are there at all? Every combination of degrees, batches and chunks, as columns.

Degrees are powers of two and the divisors of what they cut (heads, layers, experts) and of the
devices there are, so that 9 heads get TP 3 and 9. Of a model without experts dp is 1: independent
replicas do the same without a common step. The `vllm` space holds what that engine can run:
experts are cut over all tp * dp ranks (no expert parallelism) or spread over all of them.

Invariants: tp * dp == moe_tp * moe_ep; devices_per_replica <= the group's devices; rows distinct.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from math import isqrt

import numpy as np

from cluster.errors import InputError
from cluster.model.hardware import NodeGroup
from cluster.model.layout import LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.rules import tp_groups

CHUNKS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
BATCHES = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768),
    *(1024, 1536, 2048, 3072, 4096),
)
# A batch limit costs a CPU engine nothing until it is reached, and 16 sequences share one reading
# of the weights: fewer are planned only where no larger batch keeps the bounds.
CPU_BATCHES = (16, 24, 32, 48, 64)
CPU_SMALL_BATCHES = (1, 2, 4, 8)
CPU_CHUNKS = (256, 512, 1024)
MAX_ROWS = 10_000_000  # layouts whose estimate is held in memory at once


class Space(StrEnum):
    """What a layout may be."""

    VLLM = "vllm"  # what that engine can run
    ANY = "any"  # every expert grid, and every choice of dims per fused operator (`dims_search`)


@dataclass(frozen=True, kw_only=True)
class SpaceOptions:
    """What the enumeration ranges over. `max_devices` bounds one replica (None = the group).

    `max_dp` bounds attention data parallelism (None = as far as the experts go).
    `fallback_batches` are tried where none of `batches` satisfies the question.
    """

    space: Space = Space.VLLM
    batches: tuple[int, ...] = BATCHES
    chunks: tuple[int, ...] = CHUNKS
    max_devices: int | None = None
    max_dp: int | None = None
    fallback_batches: tuple[int, ...] = ()

    @property
    def combinations(self) -> int:
        """Batch limits times chunks of each strategy."""
        return len(self.batches) * len(self.chunks)


def options_for(
    group: NodeGroup, *, space: Space, max_devices: int, max_dp: int | None
) -> SpaceOptions:
    """The options for the kind of device of a group."""
    options = SpaceOptions(space=space, max_devices=max_devices, max_dp=max_dp)
    if group.device.kind == "cpu":
        return replace(
            options,
            batches=CPU_BATCHES,
            chunks=CPU_CHUNKS,
            fallback_batches=CPU_SMALL_BATCHES,
        )
    return options


def strategies(model: ModelSpec, group: NodeGroup, options: SpaceOptions) -> LayoutTable:
    """All degree combinations (one row each, batch and chunk at the first option).

    Raises InputError when they make more than MAX_ROWS layouts with every batch and chunk.
    """
    limit = min(group.devices, options.max_devices or group.devices)
    heads = _degrees(limit, model.heads, group.devices)
    stages = [d for d in _degrees(limit, model.num_layers, group.devices) if d <= model.num_layers]
    spread = _degrees(limit, model.experts, group.devices) if model.experts else [1]
    spread = [dp for dp in spread if dp <= (options.max_dp or dp)]
    # vLLM's CPU build crashes with experts spread over ranks.
    spreads_experts = options.space is Space.ANY or group.device.kind != "cpu"
    rows: list[tuple[int, ...]] = []
    for pp in stages:
        for tp in heads:
            for dp in spread:
                devices = tp * dp * pp
                if devices > limit:
                    continue
                groups = int(tp_groups(group, np.array([tp]))[0])
                replicas = max(1, groups // (dp * pp))
                limits = (options.batches[0], options.chunks[0])
                for moe_tp, moe_ep in _expert_grids(model, tp, dp, space=options.space):
                    if moe_ep > 1 and not spreads_experts:
                        continue
                    rows.append((tp, dp, pp, moe_tp, moe_ep, replicas, *limits))
                if len(rows) * options.combinations > MAX_ROWS:
                    raise _too_many(model, group, options)
    return LayoutTable.from_rows(rows)


def expand(table: LayoutTable, options: SpaceOptions) -> LayoutTable:
    """Every row of `table` with every batch limit and chunk, length n * combinations."""
    pairs = np.array([(b, c) for b in options.batches for c in options.chunks], dtype=np.int64)
    wide = table.take(np.repeat(np.arange(len(table)), len(pairs)))
    batches, chunks = np.tile(pairs, (len(table), 1)).T
    return LayoutTable(
        wide.tp,
        wide.dp,
        wide.pp,
        wide.moe_tp,
        wide.moe_ep,
        wide.replicas,
        batches,
        chunks,
    )


def _degrees(limit: int, *counts: int) -> list[int]:
    found = {1 << power for power in range(limit.bit_length())}
    for count in counts:
        found |= {d for d in range(1, min(limit, count) + 1) if count % d == 0}
    return sorted(d for d in found if d <= limit)


def _expert_grids(model: ModelSpec, tp: int, dp: int, *, space: Space) -> list[tuple[int, int]]:
    ranks = tp * dp
    if not model.experts:
        return [(ranks, 1)]
    if space is Space.VLLM:
        return [(ranks, 1)] if ranks == 1 else [(ranks, 1), (1, ranks)]
    return [(ranks // ep, ep) for ep in _divisors(ranks)]


@cache
def _divisors(number: int) -> tuple[int, ...]:
    low = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*low, *(number // d for d in low)}))


def _too_many(model: ModelSpec, group: NodeGroup, options: SpaceOptions) -> InputError:
    return InputError(
        f"the `{options.space.value}` space of {model.name} on {group.devices:,} x "
        f"{group.device.name} has more than {MAX_ROWS:,} layouts, the limit of one search. "
        "Fix: bound it with `--max-dp N`, use the `vllm` space, or name a smaller cluster."
    )
