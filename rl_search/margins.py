"""By how much does an estimated layout keep what a question asks? One margin per rule.

Like those of `cluster.model.rules`, a margin is relative and at least 0 exactly where the rule
holds. The exact search filters by them, a learning one is penalised by how far off it is.

Shapes: everything (n,).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.estimate import EstimateTable
from cluster.costmodel.memory import MemoryTable
from cluster.model.layout import LayoutTable
from cluster.model.workload import Slo

Floats = NDArray[np.float64]
Margins = dict[str, Floats]

MOST_QUEUE = 2.0 / 3.0  # of a request's life


def memory_margins(table: LayoutTable, memory: MemoryTable, *, max_model_len: int) -> Margins:
    """Weights, the longest sequence and the batch, in the order a user wants to hear of them."""
    # An engine refuses to start when its cache cannot hold one sequence of its full length.
    longest = max_model_len * table.dp
    return {
        "memory": (memory.kv_budget - memory.sequence_bytes) / memory.limit,
        "kv_below_context": (memory.kv_capacity_tokens - longest) / longest,
        "batch_beyond_memory": (memory.max_sequences - table.max_num_seqs) / table.max_num_seqs,
    } | limit_margins(table)


def limit_margins(table: LayoutTable) -> Margins:
    """Whether batch and chunk go with the degrees and each other, whatever the memory."""
    stages = table.dp * table.pp
    # Every sequence of a rank decodes a token a step: vLLM refuses a chunk that cannot hold them.
    decoding = np.ceil(table.max_num_seqs / table.dp)
    return {
        "batch_below_stages": (table.max_num_seqs - stages) / stages,
        "chunk_below_batch": (table.max_num_batched_tokens - decoding) / decoding,
    }


def least(margins: Margins) -> Floats:
    """The worst of all rules, (n,)."""
    return np.asarray(np.stack(list(margins.values())).min(axis=0))


def speed_margins(estimates: EstimateTable, judged: EstimateTable, slo: Slo) -> Margins:
    """Queueing and the bounds. `judged`: with TTFT and TPOT as the bounds mean them."""
    # Twice as long in line as being served: fewer in flight give the same throughput sooner.
    life = estimates.concurrency / np.maximum(estimates.requests_per_s, 1e-12)
    return {
        "mostly_queueing": (MOST_QUEUE * life - estimates.ttft_parts["queue"]) / life,
        "ttft": _below(judged.ttft_s, slo.ttft_s),
        "tpot": _below(judged.tpot_s, slo.tpot_s),
    }


def _below(values: Floats, limit: float | None) -> Floats:
    if limit is None:
        return np.zeros(len(values))
    return np.asarray((limit - values) / limit)
