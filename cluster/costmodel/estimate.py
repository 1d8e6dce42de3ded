"""What do users and the budget see of each layout? The one entry point of the cost model.

tokens/s/user = 1 / TPOT; tokens/s/device = X * OSL / devices; X from `service.steady_state`.
Cost per million output tokens = price/h * devices / 3600 / (X * OSL) * 1e6.

Shapes: everything (n,), n = number of layouts; concurrency a number or (n,) per replica.
Invariants: one row estimated alone equals the same row in a table; parts sum to the total.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cluster.costmodel.calibration_file import default_coefficients
from cluster.costmodel.case import Grid, make_case
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.memory import DEFAULT_HEADROOM, MemoryTable, memory_table
from cluster.costmodel.precision import as_held
from cluster.costmodel.service import Demand, SteadyState, prefill_only, steady_state
from cluster.costmodel.speculation import Speculation
from cluster.costmodel.steps import Parts
from cluster.model.hardware import NodeGroup
from cluster.model.layout import LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.workload import Lengths, Workload

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Serving:
    """How a replica is served, beside its layout.

    `backend` vllm, sglang or trtllm, and its `version` where a calibration knows it;
    `offload_bytes` of each device's weights lie in host memory (vLLM's `cpu_offload_gb`).
    """

    backend: str = "vllm"
    version: str = ""
    speculation: Speculation | None = None
    offload_bytes: float = 0.0


PLAIN = Serving()


@dataclass(frozen=True, kw_only=True)
class EstimateTable:
    """Estimates of n layouts of one replica each; seconds, tokens, bytes per device, USD.

    `running` is how many of `concurrency` sequences the batch limit and the KV cache admit.
    `parts` sum to `tpot_s`, `ttft_parts` to `ttft_s`; `state` is the operating point of one
    data-parallel rank. `cost_per_million_tokens` is NaN where the device has no price. Rows that
    do not fit hold numbers all the same: look at `fits`.
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
    state: SteadyState
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
    coefficients: Coefficients | None = None,
    serving: Serving = PLAIN,
) -> EstimateTable:
    """Estimate every layout of `table` with `concurrency` requests always in flight per replica.

    Never raises for layouts that do not fit: the memory columns say by how much.
    """
    chosen = coefficients if coefficients is not None else default_coefficients()
    model = as_held(model, group.device)
    case = make_case(
        model, group, table, chosen, backend=serving.backend, version=serving.version
    ).merged()
    grid = case.grid
    context = workload.isl + workload.osl
    memory = memory_table(
        model,
        group.device,
        grid,
        table,
        context=context,
        headroom=headroom,
        offloaded=serving.offload_bytes,
    )
    offered = np.broadcast_to(np.asarray(concurrency, dtype=np.float64), grid.tp.shape)
    batch = np.minimum(np.asarray(table.max_num_seqs, dtype=np.float64), memory.max_sequences)
    # A replica that fits nothing is estimated with one sequence per rank, and marked by `fits`.
    running = np.minimum(offered, np.maximum(batch, grid.dp))
    demand = replace(
        demand_of(grid, workload, serving, table, offered=offered, running=running),
        offloaded=memory.offloaded,
    )
    state = steady_state(case, demand, chosen)
    # With fewer requests than ranks, some ranks are idle.
    ranks = np.minimum(grid.dp, offered)
    rate = state.requests_per_s * ranks
    tokens = rate * workload.osl
    prefill, _ = prefill_only(case, demand, chosen)
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
        state=state,
        cost_per_million_tokens=hourly / 3600.0 / tokens * 1e6,
        provenance=chosen.provenance,
    )


def demand_of(
    grid: Grid,
    workload: Workload,
    serving: Serving,
    table: LayoutTable,
    *,
    offered: Floats,
    running: Floats,
) -> Demand:
    """What one data-parallel rank of each layout is asked, `running` of `offered` per replica."""

    def column(value: float) -> Floats:
        return np.full_like(grid.tp, value)

    speculation = serving.speculation
    drafts = 0 if speculation is None else speculation.drafts
    return Demand(
        isl=column(workload.isl),
        osl=column(workload.osl),
        cached=column(workload.isl * workload.prefix_hit),
        equal=np.full(grid.tp.shape, workload.lengths is Lengths.EQUAL),
        queries=column(1.0 + drafts),
        accepted=column(1.0 if speculation is None else speculation.accepted),
        draft_share=column(0.0 if speculation is None else drafts * speculation.draft_share),
        offloaded=column(serving.offload_bytes),
        chunk=np.asarray(table.max_num_batched_tokens, dtype=np.float64),
        offered=np.maximum(offered / grid.dp, 1.0),
        admitted=np.maximum(running / grid.dp, 1.0),
    )
