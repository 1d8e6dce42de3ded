"""How much KV cache is an engine on CPU cores given? As much as its batch needs, and no more.

A GPU's memory is the engine's alone, so it takes what is left. A CPU's is shared with the other
replicas and with everything else on the machine: the cache is asked for in bytes,
    blocks = max(sequences * ceil((isl + osl) / block), ceil(max_model_len / block)) + 1,
cut to what the cost model leaves (`cluster.costmodel.memory`: at most 2 GiB per rank). vLLM keeps
the one block more for itself; its CPU build has blocks of 128 tokens.

Invariant: the engine holds `tokens` tokens, and at least the planned batch where memory allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster.costmodel.memory import MemoryTable
from cluster.model.layout import Layout

BLOCK_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class KvCache:
    """`bytes_per_rank` to ask an engine for, and the `tokens` its replica then holds."""

    bytes_per_rank: int
    tokens: int


def cpu_kv_cache(
    memory: MemoryTable, index: int, *, layout: Layout, context: int, max_model_len: int
) -> KvCache:
    """The cache of row `index` of `memory`, whose sequences have `context` tokens (isl + osl)."""
    token_bytes = float(memory.sequence_bytes[index]) / context
    sequences = math.ceil(layout.max_num_seqs / layout.dp)
    wanted = max(sequences * _blocks(context), _blocks(max_model_len)) + 1
    allowed = math.floor(float(memory.kv_budget[index]) / (token_bytes * BLOCK_TOKENS))
    blocks = max(1, min(wanted, allowed))
    return KvCache(
        bytes_per_rank=math.ceil(blocks * BLOCK_TOKENS * token_bytes),
        tokens=(blocks - 1) * BLOCK_TOKENS * layout.dp,
    )


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)
