"""How long does one engine step take? All layers of a replica, as a sum of named parts.

A step carries `decode` sequences (one token each) and `prefill` prompt tokens through every
layer; matrix products see them together, attention apart. After the attention output and after
the feed-forward, tensor parallelism sums partial results: an all-reduce. Routed experts on other
ranks need an all-to-all before and after (attention data-parallel), an all-gather and a
reduce-scatter (experts cut by tensor over several data-parallel ranks), or, without data
parallelism, only the all-reduce that is there anyway.

Shapes: loads (n,), parts (n,) seconds. With pp stages the parts add up the whole pipeline pass.
Invariants: every part >= 0; the step is monotone in both loads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel import attention, collectives, compute
from cluster.costmodel.grid import Grid
from cluster.model.formats import NumberFormat
from cluster.model.model_spec import Group, LayerKind, ModelSpec, Operator

Floats = NDArray[np.float64]
Parts = dict[str, Floats]

PART_NAMES = (
    "projections",
    "attention",
    "ffn",
    "experts",
    "head",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
    "launch",
    "host",
)
"""Parts of one step. The estimate adds `bubble`, `prefill_share` and `stragglers`."""

_PART_OF = {
    Group.ATTENTION: "projections",
    Group.DENSE: "ffn",
    Group.SHARED: "ffn",
    Group.EXPERTS: "experts",
    Group.REPLICATED: "ffn",
    Group.VOCABULARY: "head",
}


@dataclass(frozen=True, kw_only=True)
class StepLoad:
    """What one step of one data-parallel rank carries, shape (n,) each.

    `decode` sequences at `context` tokens; `prefill` tokens of prompts of `prompt` tokens;
    `routed` tokens that all ranks together send through the experts in this step.
    """

    decode: Floats
    context: Floats
    prefill: Floats
    prompt: Floats
    routed: Floats


def step_parts(model: ModelSpec, grid: Grid, load: StepLoad) -> Parts:
    """Seconds of one step by part name, each shape (n,)."""
    parts: Parts = {name: np.zeros_like(grid.tp) for name in PART_NAMES}
    tokens = load.decode + load.prefill
    for layer, count in model.layers:
        _add_layer(parts, layer, count, model=model, grid=grid, load=load)
    _add_vocabulary(parts, model=model, grid=grid, load=load)
    message = tokens * model.hidden * compute.activation_bytes(grid)
    hop = collectives.send_recv(message, leaves_domain=grid.stage_leaves_domain, fabric=grid.fabric)
    parts["send_recv"] = (grid.pp - 1.0) * hop
    kernels = sum(
        count * (len(layer.operators) + grid.coefficients.kernels_per_layer)
        for layer, count in model.layers
    )
    kind = grid.device.kind
    launch_s = grid.device.launch_overhead_s * grid.coefficients.captured_launch[kind]
    parts["launch"] = np.full_like(grid.tp, kernels * launch_s)
    sequence_s = grid.coefficients.host_sequence_s[kind]
    parts["host"] = grid.coefficients.host_step_s[kind] + sequence_s * load.decode
    return parts


def total(parts: Parts) -> Floats:
    """Sum of the parts, shape (n,)."""
    return np.asarray(np.sum(np.stack(list(parts.values())), axis=0), dtype=np.float64)


def _add_layer(
    parts: Parts, kind: LayerKind, count: int, *, model: ModelSpec, grid: Grid, load: StepLoad
) -> None:
    tokens = load.decode + load.prefill
    for op in kind.operators:
        seconds = compute.operator_s(op, tokens, routed=load.routed, model=model, grid=grid)
        parts[_PART_OF[op.group]] += count * seconds
    spec = kind.attention
    decode = attention.decode_s(spec, load.decode, load.context, kv=model.kv_format, grid=grid)
    prefill = attention.prefill_s(spec, load.prefill, load.prompt, kv=model.kv_format, grid=grid)
    parts["attention"] += count * (decode + prefill)
    size = tokens * model.hidden * compute.activation_bytes(grid)
    reduce_s = collectives.all_reduce(size, grid.tp_ring, grid.fabric)
    parts["all_reduce"] += count * reduce_s
    if kind.is_moe:
        _add_expert_exchange(parts, kind, count, model=model, grid=grid, tokens=tokens)
    else:
        parts["all_reduce"] += count * reduce_s


def _add_expert_exchange(
    parts: Parts, kind: LayerKind, count: int, *, model: ModelSpec, grid: Grid, tokens: Floats
) -> None:
    fabric, width = grid.fabric, compute.activation_bytes(grid)
    size = tokens * model.hidden * width
    alone = grid.dp == 1.0
    parts["all_reduce"] += np.where(
        alone, count * collectives.all_reduce(size, grid.tp_ring, fabric), 0.0
    )
    # Each token goes to at most k ranks; a rank of a tensor-parallel group sends its share.
    fan_out = np.minimum(float(model.experts_per_token), grid.moe_ep)
    sent = size / grid.tp * fan_out * compute.skew(grid)
    stored = next(op.format for op in kind.operators if op.group is Group.EXPERTS)
    dispatch = 0.5 if stored in _EIGHT_BITS_OR_LESS else 1.0  # activations travel as fp8
    exchange = collectives.all_to_all(sent * dispatch, grid.moe_ep_ring, fabric)
    exchange = exchange + collectives.all_to_all(sent, grid.moe_ep_ring, fabric)
    spread = ~alone & (grid.moe_ep > 1.0)
    parts["all_to_all"] += np.where(spread, count * exchange, 0.0)
    inner = spread & (grid.moe_tp_ring.ranks > 1.0)
    gathered = size * fan_out
    parts["all_gather"] += np.where(
        inner, count * collectives.all_gather(gathered, grid.moe_tp_ring, fabric), 0.0
    )
    parts["reduce_scatter"] += np.where(
        inner, count * collectives.reduce_scatter(gathered, grid.moe_tp_ring, fabric), 0.0
    )
    cut = ~alone & (grid.moe_ep == 1.0)
    whole = size * grid.dp
    parts["all_gather"] += np.where(
        cut, count * collectives.all_gather(whole, grid.moe_tp_ring, fabric), 0.0
    )
    parts["reduce_scatter"] += np.where(
        cut, count * collectives.reduce_scatter(whole, grid.moe_tp_ring, fabric), 0.0
    )


def _add_vocabulary(parts: Parts, *, model: ModelSpec, grid: Grid, load: StepLoad) -> None:
    """Embedding look-up (summed over tp), and logits of the tokens that are sampled from."""
    width = compute.activation_bytes(grid)
    tokens = load.decode + load.prefill
    size = tokens * model.hidden * width
    parts["all_reduce"] += collectives.all_reduce(size, grid.tp_ring, grid.fabric)
    sampled = load.decode + load.prefill / np.maximum(load.prompt, 1.0)
    head = _head(model)
    parts["head"] += compute.operator_s(head, sampled, routed=sampled, model=model, grid=grid)
    logits = sampled * model.vocab * width
    parts["all_gather"] += collectives.all_gather(logits, grid.tp_ring, grid.fabric)


def _head(model: ModelSpec) -> Operator:
    if model.head is not None:
        return model.head
    tied = model.embedding
    return Operator(
        name="head", group=Group.VOCABULARY, rows=model.hidden, cols=model.vocab, format=tied.format
    )


_EIGHT_BITS_OR_LESS = frozenset(
    {NumberFormat.FP8, NumberFormat.FP8_BLOCK, NumberFormat.NVFP4, NumberFormat.MXFP4}
)
