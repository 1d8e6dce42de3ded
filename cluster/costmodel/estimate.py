"""What do users and the budget see of each layout? The one entry point of the cost model.

tokens/s/user = 1 / TPOT; tokens/s/device = X * OSL / devices; X from `steady.steady_state`.
Cost per million output tokens = price/h * devices / 3600 / (X * OSL) * 1e6.

Shapes: everything (n,), n = number of layouts; concurrency a number or (n,) per replica.
Invariants: one row estimated alone equals the same row in a table; parts sum to the total.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cluster.costmodel.coefficients import DEFAULT, Coefficients
from cluster.costmodel.grid import make_grid
from cluster.costmodel.memory import DEFAULT_HEADROOM, MemoryTable, memory_table
from cluster.costmodel.precision import as_held
from cluster.costmodel.steady import prefill_only, steady_state
from cluster.costmodel.steps import Parts
from cluster.model.hardware import NodeGroup
from cluster.model.layout import LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.workload import Workload

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class EstimateTable:
    """Estimates of n layouts of one replica each; seconds, tokens, bytes per device, USD.

    `running` is how many of `concurrency` sequences the batch limit and the KV cache admit.
    `parts` sum to `tpot_s`, `ttft_parts` to `ttft_s`. `cost_per_million_tokens` is NaN where
    the device has no price. Rows that do not fit hold numbers all the same: look at `fits`.
    """

    ttft_s: Floats
    tpot_s: Floats
    tokens_per_s_per_device: Floats
    tokens_per_s_per_user: Floats
    requests_per_s: Floats
    prefill_tokens_per_s: Floats
    decode_tokens_per_s: Floats
    concurrency: Floats
    running: Floats
    memory: MemoryTable
    parts: Parts
    ttft_parts: Parts
    cost_per_million_tokens: Floats
    provenance: str

    @property
    def kv_capacity_tokens(self) -> Floats:
        """Tokens the KV cache of a replica holds, shape (n,)."""
        return self.memory.kv_capacity_tokens

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Whether weights, activations and one sequence per rank fit, shape (n,)."""
        return self.memory.fits

    def memory_of(self, index: int) -> dict[str, float]:
        """Bytes per device of one row by name; `kv` is the whole KV budget."""
        memory = self.memory
        return {
            "weights": float(memory.weights[index]),
            "activations": float(memory.activations[index]),
            "reserved": float(memory.reserved[index]),
            "kv": max(float(memory.kv_budget[index]), 0.0),
        }


def estimate(
    model: ModelSpec,
    group: NodeGroup,
    table: LayoutTable,
    workload: Workload,
    *,
    concurrency: ArrayLike,
    headroom: float = DEFAULT_HEADROOM,
    coefficients: Coefficients = DEFAULT,
) -> EstimateTable:
    """Estimate every layout of `table` with `concurrency` requests always in flight per replica.

    Never raises for layouts that do not fit: the memory columns say by how much.
    """
    model = as_held(model, group.device)
    grid = make_grid(group, table, coefficients)
    context = workload.isl + workload.osl
    memory = memory_table(model, grid, table, context=context, headroom=headroom)
    offered = np.broadcast_to(np.asarray(concurrency, dtype=np.float64), grid.tp.shape)
    batch = np.minimum(np.asarray(table.max_num_seqs, dtype=np.float64), memory.max_sequences)
    # A replica that fits nothing is estimated with one sequence per rank, and marked by `fits`.
    running = np.minimum(offered, np.maximum(batch, grid.dp))
    chunk = np.asarray(table.max_num_batched_tokens, dtype=np.float64)
    state = steady_state(
        model,
        grid,
        workload,
        chunk=chunk,
        offered=np.maximum(offered / grid.dp, 1.0),
        admitted=np.maximum(running / grid.dp, 1.0),
    )
    # With fewer requests than ranks, some ranks are idle.
    ranks = np.minimum(grid.dp, offered)
    rate = state.requests_per_s * ranks
    tokens = rate * workload.osl
    prefill, _ = prefill_only(model, grid, workload, chunk=chunk)
    tpot, price = state.tpot_s, group.device.price_per_hour
    hourly = np.full_like(grid.tp, np.nan if price is None else price) * grid.devices
    return EstimateTable(
        ttft_s=state.ttft_s,
        tpot_s=tpot,
        tokens_per_s_per_device=tokens / grid.devices,
        tokens_per_s_per_user=1.0 / tpot,
        requests_per_s=rate,
        prefill_tokens_per_s=prefill * grid.dp,
        decode_tokens_per_s=state.decoding * ranks / tpot,
        concurrency=np.asarray(offered, dtype=np.float64).copy(),
        running=running,
        memory=memory,
        parts=state.tpot_parts,
        ttft_parts=state.ttft_parts,
        cost_per_million_tokens=hourly / 3600.0 / tokens * 1e6,
        provenance=coefficients.provenance,
    )
