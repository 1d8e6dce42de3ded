"""How long do the attention cores of a step take? Decode reads the cache, prefill multiplies.

Decode: t = floor + ((bytes / (bandwidth mbu))^4 + (items item_s)^4 + (flops / (peak mfu))^4)^(1/4),
an item one (sequence, KV head) pair of this device: kernels schedule by it. Prefill of a prompt
attends to half of it on average, 2 (qk + v) operations per pair and head, at mfu L/(L + half) of
peak (causal FlashAttention: short prompts fill the device badly). Multi-head latent attention
decodes in its absorbed form: every head reads the one latent vector of a token, so tensor
parallelism does not divide the reads (arXiv:2405.04434). A window or a sparse selection bounds the
attended context; the indexer of a sparse selection scores all of it, with heads no rank shares.

Shapes: sequences, tokens, contexts (n,); result (a, n) seconds of one layer.
Invariants: monotone in sequences and context; more tensor parallelism never slower.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.case import Case
from cluster.costmodel.chain import GROUPED, LATENT, LINEAR
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.compute import rounded_knee

Floats = NDArray[np.float64]


def kv_shards(case: Case) -> Floats:
    """Into how many different parts tensor parallelism cuts each core's KV cache, (a, n)."""
    cores = case.cores
    heads = np.where(cores.kind == LINEAR, cores.heads, cores.kv_heads)
    return np.where(cores.kind == LATENT, 1.0, np.minimum(case.grid.tp, heads))


def decode_s(
    case: Case, sequences: Floats, context: Floats, coefficients: Coefficients, *, queries: Floats
) -> Floats:
    """Seconds for the next token of each of `sequences`; `queries` tokens of each are scored."""
    cores, machine, values = case.cores, case.machine, coefficients.values
    seen = np.minimum(context, cores.limit)
    elements = (seen * cores.kv_elements + 2.0 * cores.state_elements) / kv_shards(case)
    elements = elements + context * cores.index_dim
    narrow = (cores.kind == GROUPED) & (case.body.kv_bytes < 1.5)
    share = values[cores.decode_mbu] * np.where(narrow, values[machine.fp8_share], 1.0)
    memory = sequences * elements * case.body.kv_bytes / (machine.memory_bandwidth * share)
    held = np.where(cores.kind == GROUPED, np.maximum(cores.kv_heads / case.grid.tp, 1.0), 1.0)
    items = sequences * held * values[cores.item_s]
    pairs = cores.heads / case.grid.tp * cores.decode_width * seen
    flops = 2.0 * sequences * queries * (pairs + cores.index_heads * cores.index_dim * context)
    compute = flops / (machine.peak * values[cores.decode_mfu])
    # A sparse selection launches its indexer's kernel before the attention itself.
    launches = np.where(cores.index_heads > 0.0, 2.0, 1.0)
    busy = rounded_knee(memory, items, compute) + launches * values[cores.floor_s]
    return np.where(sequences > 0.0, busy * values[case.engine.attention], 0.0)


def prefill_s(
    case: Case, tokens: Floats, prompt: Floats, coefficients: Coefficients, *, cached: Floats
) -> Floats:
    """Seconds for `tokens` prompt tokens of prompts of `prompt` tokens, `cached` of them known.

    Taken as an average over the prompt, so that the chunks of a prompt add up to the prompt.
    """
    cores, machine, values = case.cores, case.machine, coefficients.values
    mean = cached + (prompt - cached) / 2.0
    seen = np.minimum(mean, cores.limit)
    width = cores.qk_dim + cores.v_dim
    # Linear attention updates a state of qk_dim rows instead of visiting a context.
    visited = np.where(cores.kind == LINEAR, cores.qk_dim, seen)
    flops = 2.0 * tokens * (visited * cores.heads / case.grid.tp * width)
    flops = flops + 2.0 * tokens * cores.index_heads * cores.index_dim * mean
    knee = np.where(cores.kind == LINEAR, 1.0, prompt / (prompt + values[cores.half_context]))
    compute = flops / (machine.peak * values[cores.prefill_mfu] * np.maximum(knee, 1e-9))
    stored = (tokens + seen) * cores.kv_elements * case.body.kv_bytes / kv_shards(case)
    memory = stored / (machine.memory_bandwidth * values[cores.decode_mbu])
    busy = np.maximum(compute, memory) + values[cores.floor_s]
    return np.where(tokens > 0.0, busy, 0.0)
