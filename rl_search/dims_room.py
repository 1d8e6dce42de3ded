"""How much memory do per-operator dims have to share, and which layouts can fit under any of them?

Invariants: what the default dims use is in the room exactly where the layout fits under them; no
assignment uses less than `least`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.memory import MemoryTable
from cluster.costmodel.sharded_memory import Holdings, holdings
from cluster.costmodel.sharded_steps import Sharding
from cluster.model.layout import LayoutTable
from rl_search.sharded_estimate import Setting

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Room:
    """Memory of n rows: `room` bytes for what dims decide, of which any assignment takes `least`.

    `sequences` that a rank must hold; `token_bytes` of an element per token at a full chunk.
    """

    held: Holdings
    sequences: Floats
    token_bytes: Floats
    room: Floats
    least: Floats

    @classmethod
    def of(
        cls, setting: Setting, table: LayoutTable, memory: MemoryTable, *, max_model_len: int
    ) -> Room:
        """From the memory under default dims."""
        context = setting.workload.isl + setting.workload.osl
        asked = np.ceil(table.max_num_seqs / table.dp)
        sequences = np.maximum(asked, max_model_len / context)
        width = 4.0 if setting.group.device.kind == "cpu" else 2.0
        token_bytes = np.asarray(table.max_num_batched_tokens * width, dtype=np.float64)
        held = holdings(setting.model, setting.case(table).grid, context=context)
        default = setting.sharding(table, default=True)
        used = _used(held, default, sequences, token_bytes)
        least = held.operators.min(axis=0).sum(axis=0)
        least = least + sequences * held.cores[0].sum(axis=0)
        return cls(
            held=held,
            sequences=sequences,
            token_bytes=token_bytes,
            room=memory.kv_budget - sequences * memory.sequence_bytes + used,
            least=least + token_bytes * held.wide.min(axis=0).max(axis=0),
        )

    def fits(self, sharding: Sharding) -> Bools:
        """Which rows fit under the dims of `sharding`."""
        used = _used(self.held, sharding, self.sequences, self.token_bytes)
        return np.asarray(used <= self.room)


def may_fit(
    setting: Setting, table: LayoutTable, memory: MemoryTable, *, max_model_len: int
) -> Bools:
    """Rows that the bound on every assignment leaves room for."""
    space = Room.of(setting, table, memory, max_model_len=max_model_len)
    return np.asarray((space.least <= space.room) & (table.tp > 1))


def _used(held: Holdings, sharding: Sharding, sequences: Floats, token_bytes: Floats) -> Floats:
    """Bytes that dims decide, (n,): weights, the KV cache of `sequences`, live tensors."""

    def picked(terms: Floats, codes: Ints) -> Floats:
        return np.asarray(np.take_along_axis(terms, codes[None], axis=0)[0])

    weights = picked(held.operators, sharding.cuts).sum(axis=0)
    cores = picked(held.cores, sharding.whole_cores.astype(np.int64)).sum(axis=0)
    widest = picked(held.wide, sharding.cuts).max(axis=0)
    return np.asarray(weights + sequences * cores + token_bytes * widest)
