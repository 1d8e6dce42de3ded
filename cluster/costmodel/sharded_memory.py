"""What does a device hold under per-operator dims? The bytes of `sharding`'s walks.

An operator cut by column or row is divided by its ranks, one that is whole is held by every rank; a
whole core holds the KV cache of all heads; live tensors are those of the widest operator. All of it
as `memory_table` counts them, so that Megatron's dims give exactly its figures.

Shapes: k operators (the head last), a layer kinds, n layouts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.case import Grid
from cluster.costmodel.memory import CPU_KV_LIMIT, MemoryTable, kv_shards, operator_bytes
from cluster.costmodel.sharded_steps import Sharding
from cluster.model.hardware import Device
from cluster.model.layout import LayoutTable
from cluster.model.model_spec import Group, ModelSpec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """Bytes a device of the fullest stage holds, by how an operator is cut, (n,) arrays.

    `operators` (4, k, n) by `sharding.Cut` (head: 0); `wide` (4, k, n): elements per token that an
    operator keeps alive; `cores` (2, a, n): KV of one sequence, heads cut and whole.
    """

    operators: Floats
    wide: Floats
    cores: Floats


def holdings(model: ModelSpec, grid: Grid, *, context: int) -> Holdings:
    """The terms of `memory_table` that dims decide, for sequences of `context` tokens."""
    one = np.ones_like(grid.tp)
    stages = _stage_layers(model, grid)
    held, wide = [], []
    for (kind, _), layers in zip(model.layers, stages, strict=True):
        for op in kind.operators:
            if not (op.rows and op.cols):
                continue
            expert = op.group is Group.EXPERTS
            # As if the operator followed the group that cuts it, and as if nothing did.
            cut = replace(op, group=op.group if expert else Group.ATTENTION)
            apart = replace(grid, moe_tp=one) if expert else grid
            whole = cut if expert else replace(op, group=Group.REPLICATED)
            divided, entire = operator_bytes(cut, grid), operator_bytes(whole, apart)
            held.append([layers * b for b in (divided, divided, entire, entire)])
            ranks = grid.moe_tp if expert else grid.tp
            narrow, full = op.active * (op.rows + op.cols / ranks), op.active * (op.rows + op.cols)
            wide.append([narrow, narrow, full * one, full / grid.tp])
    held.append([0.0 * one] * 4)
    wide.append([0.0 * one] * 4)
    cores = []
    mean = np.ceil(model.num_layers / grid.pp) / model.num_layers
    for kind, count in model.layers:
        spec = kind.attention
        stored = float(context if spec.window is None else min(context, spec.window))
        elements = stored * spec.kv_elements + spec.state_elements
        whole_bytes = count * elements * model.kv_format.bytes * mean
        cores.append([whole_bytes / kv_shards(spec, grid.tp), whole_bytes])
    return Holdings(
        operators=np.array(held).swapaxes(0, 1),
        wide=np.array(wide).swapaxes(0, 1),
        cores=np.array(cores).swapaxes(0, 1),
    )


def _stage_layers(model: ModelSpec, grid: Grid) -> list[Floats]:
    """Layers of each kind in the fullest stage as `memory_table` fills it, heaviest kinds first."""
    left = np.ceil(float(model.num_layers) / grid.pp)
    weights = [sum(op.weight_bytes for op in kind.operators) for kind, _ in model.layers]
    taken = [np.zeros_like(grid.tp) for _ in weights]
    for index in sorted(range(len(weights)), key=weights.__getitem__, reverse=True):
        taken[index] = np.minimum(left, float(model.layers[index][1]))
        left = left - taken[index]
    return taken


def sharded_memory(
    model: ModelSpec,
    device: Device,
    grid: Grid,
    table: LayoutTable,
    *,
    megatron: MemoryTable,
    sharding: Sharding,
    default: Sharding,
    context: int,
) -> MemoryTable:
    """`megatron`, the memory under default dims (`default`), turned into that under `sharding`."""
    held = holdings(model, grid, context=context)

    def picked(terms: Floats, codes: Ints) -> Floats:
        return np.asarray(np.take_along_axis(terms, codes[None], axis=0)[0])

    def live(of: Sharding) -> Floats:
        width = 4.0 if device.kind == "cpu" else 2.0
        widest = picked(held.wide, of.cuts).max(axis=0)
        return np.asarray(table.max_num_batched_tokens * widest * width)

    def summed(terms: Floats, new: Ints, old: Ints) -> Floats:
        return np.asarray((picked(terms, new) - picked(terms, old)).sum(axis=0))

    weights = megatron.weights + summed(held.operators, sharding.cuts, default.cuts)
    activations = megatron.activations + live(sharding) - live(default)
    sequence = megatron.sequence_bytes + summed(
        held.cores, sharding.whole_cores.astype(np.int64), default.whole_cores.astype(np.int64)
    )
    budget = megatron.limit - weights - activations - megatron.reserved
    if device.kind == "cpu":
        budget = np.minimum(budget, CPU_KV_LIMIT)
    room = np.maximum(budget, 0.0)
    return replace(
        megatron,
        weights=weights,
        activations=activations,
        kv_budget=budget,
        sequence_bytes=sequence,
        max_sequences=np.floor(room / sequence) * grid.dp,
        kv_capacity_tokens=np.floor(room / sequence * context) * grid.dp,
    )
