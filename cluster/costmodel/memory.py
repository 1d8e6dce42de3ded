"""What does a layout hold on each device, and how many tokens of KV cache are left?

capacity = (memory * (1 - headroom) - weights - activations - reserved) / KV bytes per token.
The fullest pipeline stage counts: ceil(L / pp) layers, the heaviest kinds first, and the larger
of embedding and head. The default headroom is 20 %. On a CPU the cache of a rank is at most 2 GiB:
the machine's memory is shared with other replicas and everything else, and what an engine asks for
it takes.

Shapes: (n,) bytes per device; capacities per replica.
Invariants: doubling tp halves every sharded weight; capacity falls with the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.case import Grid
from cluster.model.hardware import Device
from cluster.model.layout import LayoutTable
from cluster.model.model_spec import (
    AttentionKind,
    AttentionSpec,
    Group,
    LayerKind,
    ModelSpec,
    Operator,
)

Floats = NDArray[np.float64]
DEFAULT_HEADROOM = 0.2
CPU_KV_LIMIT = 2.0 * 1024**3


@dataclass(frozen=True, kw_only=True)
class MemoryTable:
    """Bytes per device, shape (n,), and what they leave for the KV cache.

    `offloaded`: bytes of weights that the host holds. `kv_budget` may be negative: by so much the
    weights are over the limit.
    `sequence_bytes`: KV of one sequence of the workload's full context on its fullest device.
    """

    weights: Floats
    activations: Floats
    reserved: Floats
    limit: float
    kv_budget: Floats
    sequence_bytes: Floats
    max_sequences: Floats
    kv_capacity_tokens: Floats
    offloaded: Floats

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Whether the replica holds at least one sequence per data-parallel rank."""
        return self.kv_budget >= self.sequence_bytes


def memory_table(
    model: ModelSpec,
    device: Device,
    grid: Grid,
    table: LayoutTable,
    *,
    context: int,
    headroom: float,
    offloaded: float = 0.0,
) -> MemoryTable:
    """Memory of each layout for sequences of `context` tokens (prompt and output).

    `offloaded` bytes of each device's weights lie in host memory instead.
    """
    layers = float(model.num_layers)
    stage = np.ceil(layers / grid.pp)
    weights = _stage_weights(model, grid, stage) + _vocabulary(model, grid)
    moved = np.minimum(offloaded, weights)
    weights = weights - moved
    activations = _activations(model, device, grid, table)
    reserved = np.full_like(grid.tp, device.reserved_bytes)
    limit = device.memory_bytes * (1.0 - headroom)
    budget = limit - weights - activations - reserved
    if device.kind == "cpu":
        budget = np.minimum(budget, CPU_KV_LIMIT)
    sequence = _sequence_bytes(model, grid, context=float(context)) * stage / layers
    per_rank = np.floor(np.maximum(budget, 0.0) / sequence)
    return MemoryTable(
        weights=weights,
        activations=activations,
        reserved=reserved,
        limit=limit,
        kv_budget=budget,
        sequence_bytes=sequence,
        max_sequences=per_rank * grid.dp,
        kv_capacity_tokens=np.floor(np.maximum(budget, 0.0) / sequence * context) * grid.dp,
        offloaded=moved,
    )


def operator_bytes(operator: Operator, grid: Grid) -> Floats:
    """Bytes of one operator's weights on one device, shape (n,)."""
    matrices = float(operator.copies) * operator.rows * operator.cols * operator.format.bytes
    extra = operator.weight_bytes - matrices
    holders = grid.moe_ep if operator.group is Group.EXPERTS else np.ones_like(grid.tp)
    return matrices / shards(operator, grid) + extra / holders


def _kind_bytes(kind: LayerKind, grid: Grid) -> Floats:
    return sum((operator_bytes(op, grid) for op in kind.operators), np.zeros_like(grid.tp))


def _stage_weights(model: ModelSpec, grid: Grid, stage: Floats) -> Floats:
    kinds = sorted(
        model.layers, key=lambda entry: sum(op.weight_bytes for op in entry[0].operators)
    )
    left, total = stage.copy(), np.zeros_like(stage)
    for kind, count in reversed(kinds):
        taken = np.minimum(left, float(count))
        total += taken * _kind_bytes(kind, grid)
        left -= taken
    return total


def _vocabulary(model: ModelSpec, grid: Grid) -> Floats:
    embedding = operator_bytes(model.embedding, grid)
    if model.head is None:
        return embedding
    head = operator_bytes(model.head, grid)
    return np.where(grid.pp > 1.0, np.maximum(embedding, head), embedding + head)


def _activations(model: ModelSpec, device: Device, grid: Grid, table: LayoutTable) -> Floats:
    """Live tensors of one step: residual, the widest operator's input and output, logits."""
    tokens = np.asarray(table.max_num_batched_tokens, dtype=np.float64)
    widest = np.zeros_like(grid.tp)
    for kind, _ in model.layers:
        for op in kind.operators:
            cut = np.maximum(
                shards(op, grid) / (grid.moe_ep if op.group is Group.EXPERTS else 1.0), 1.0
            )
            widest = np.maximum(widest, op.active * (op.rows + op.cols / cut))
    sequences = np.ceil(np.asarray(table.max_num_seqs, dtype=np.float64) / grid.dp)
    logits = np.minimum(sequences, tokens) * model.vocab * 4.0
    width = 4.0 if device.kind == "cpu" else 2.0
    live = tokens * (4.0 * model.hidden + widest) * width
    return np.asarray(live + logits)


def _sequence_bytes(model: ModelSpec, grid: Grid, *, context: float) -> Floats:
    total = np.zeros_like(grid.tp)
    for kind, count in model.layers:
        spec = kind.attention
        stored = context if spec.window is None else min(context, float(spec.window))
        elements = stored * spec.kv_elements + spec.state_elements
        total += count * elements * model.kv_format.bytes / kv_shards(spec, grid.tp)
    return np.maximum(total, 1.0)


def shards(operator: Operator, grid: Grid) -> Floats:
    """Ranks that divide the operator's matrices among them, shape (n,)."""
    if operator.group is Group.EXPERTS:
        return grid.moe_tp * grid.moe_ep
    if operator.group is Group.REPLICATED:
        return np.ones_like(grid.tp)
    return grid.tp


def kv_shards(spec: AttentionSpec, tp: Floats) -> Floats:
    """Into how many different parts tensor parallelism cuts the KV cache, shape (n,)."""
    if spec.kind is AttentionKind.MLA:
        return np.ones_like(tp)
    heads = spec.heads if spec.kind is AttentionKind.LINEAR else spec.kv_heads
    return np.minimum(tp, float(max(heads, 1)))
