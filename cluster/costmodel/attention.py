"""How long does the attention core of a layer take? Decode reads the cache, prefill multiplies.

Decode: t = floor + bytes_read / (bandwidth * mbu). Prefill of a prompt attends L/2 tokens on
average, 2 * (qk + v) operations per pair and head, at mfu * L / (L + half) of peak (causal
FlashAttention: short prompts fill the device badly). Multi-head latent attention decodes in its
absorbed form: every head reads the one latent vector of a token, so tensor parallelism does not
divide the reads (arXiv:2405.04434). A window or a sparse selection bounds the attended context;
the indexer of a sparse selection scores all of it, with heads that no rank shares.

Shapes: sequences, tokens, contexts (n,); result (n,) seconds of one layer.
Invariants: monotone in sequences and context; more tensor parallelism never slower.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.coefficients import compute_format, family_of
from cluster.costmodel.grid import Grid
from cluster.model.formats import NumberFormat
from cluster.model.model_spec import AttentionKind, AttentionSpec

Floats = NDArray[np.float64]


def kv_shards(spec: AttentionSpec, tp: Floats) -> Floats:
    """Into how many different parts tensor parallelism cuts the KV cache, shape (n,)."""
    if spec.kind is AttentionKind.MLA:
        return np.ones_like(tp)
    heads = spec.heads if spec.kind is AttentionKind.LINEAR else spec.kv_heads
    return np.minimum(tp, float(max(heads, 1)))


def attended(spec: AttentionSpec, context: Floats) -> Floats:
    """Tokens attended at `context`, after the layer's limits."""
    limits = [limit for limit in (spec.context_limit, spec.window) if limit is not None]
    return np.minimum(context, float(min(limits))) if limits else context


def decode_s(
    spec: AttentionSpec, sequences: Floats, context: Floats, *, kv: NumberFormat, grid: Grid
) -> Floats:
    """Seconds of one layer's attention for one new token of each of `sequences`."""
    device = grid.device
    curve = grid.coefficients.attention[family_of(device)]
    cut = kv_shards(spec, grid.tp)
    elements = (attended(spec, context) * spec.kv_elements + 2.0 * spec.state_elements) / cut
    elements = elements + context * spec.index_dim
    memory = sequences * elements * kv.bytes / (device.memory_bandwidth * curve.decode_mbu)
    pairs = spec.heads / grid.tp * _pair_width(spec) * attended(spec, context)
    flops = 2.0 * sequences * (pairs + spec.index_heads * spec.index_dim * context)
    peak = device.flops[compute_format(NumberFormat.BF16, device)]
    compute = flops / (peak * curve.prefill_mfu)
    return np.where(sequences > 0.0, np.maximum(memory, compute) + curve.decode_floor_s, 0.0)


def prefill_s(
    spec: AttentionSpec, tokens: Floats, prompt: Floats, *, kv: NumberFormat, grid: Grid
) -> Floats:
    """Seconds of one layer's attention for `tokens` prompt tokens of prompts of length `prompt`.

    Taken as an average over the prompt, so that the chunks of a prompt add up to the prompt.
    """
    device = grid.device
    curve = grid.coefficients.attention[family_of(device)]
    seen = attended(spec, prompt / 2.0)
    if spec.kind is AttentionKind.LINEAR:
        pairs = tokens * (spec.qk_dim + spec.v_dim)  # a state update instead of a context
        width = float(max(spec.qk_dim, 1))
        flops = 2.0 * pairs * spec.heads / grid.tp * width
    else:
        pairs = seen * spec.heads / grid.tp * (spec.qk_dim + spec.v_dim)
        flops = 2.0 * tokens * (pairs + spec.index_heads * spec.index_dim * prompt / 2.0)
    peak = device.flops[compute_format(NumberFormat.BF16, device)]
    efficiency = curve.prefill_mfu * prompt / (prompt + curve.half_context)
    compute = flops / (peak * efficiency)
    stored = (tokens + seen) * spec.kv_elements * kv.bytes / kv_shards(spec, grid.tp)
    memory = stored / (device.memory_bandwidth * curve.decode_mbu)
    return np.where(tokens > 0.0, np.maximum(compute, memory) + curve.decode_floor_s, 0.0)


def _pair_width(spec: AttentionSpec) -> float:
    """Multiply-adds of one query head with one cached token in decode."""
    if spec.kind is AttentionKind.LINEAR:
        return 0.0
    return float((spec.decode_qk_dim or spec.qk_dim) + (spec.decode_v_dim or spec.v_dim))
