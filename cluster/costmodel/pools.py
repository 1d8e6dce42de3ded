"""What does a replica do that only computes prompts, or only makes tokens? The two halves of xPyD.

A prefill step carries as many whole prompts as the chunk holds; a longer prompt goes chunk by chunk
through the pipeline. A decode step carries no prompt tokens: its requests come with their KV cache.

Shapes: (n,), a row per layout. Invariants: a decode step is never slower than a mixed one of the
same batch; rates are those of a replica that always has work.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.calibration_file import default_coefficients
from cluster.costmodel.case import Case, make_case
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.distributions import kept_variance
from cluster.costmodel.estimate import PLAIN, Serving, demand_of
from cluster.costmodel.memory import DEFAULT_HEADROOM, MemoryTable, memory_table
from cluster.costmodel.precision import as_held
from cluster.costmodel.service import Demand, prefill_only
from cluster.costmodel.steps import StepLoad, prompt_host_s, step_parts, total
from cluster.model.hardware import NodeGroup
from cluster.model.layout import LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.workload import Workload

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class PrefillPool:
    """Prefill replicas, a row per layout, (n,) each.

    `prefill_s`: a prompt's own time. `requests_per_s` of a replica that is always busy, over
    `servers` data-parallel ranks. `senders`: devices that hold one prompt's KV. `fits`: weights,
    and the KV of two steps' prompts (one computed, one sent).
    """

    host_s: Floats
    prefill_s: Floats
    requests_per_s: Floats
    servers: Floats
    senders: Floats
    fits: Flags

    def take(self, rows: NDArray[np.int64]) -> PrefillPool:
        """The rows at these indices."""
        return PrefillPool(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


@dataclass(frozen=True, kw_only=True)
class DecodePool:
    """Decode replicas, a row per layout, (n,) each.

    `batch` sequences of a replica decode at `tpot_s`; `tpot_spread` is the standard deviation of a
    request's TPOT over its mean (speculation). `prompt_bytes`: KV of one prompt on each of the
    `receivers` devices of one of the `ranks` data-parallel ranks. Links: bytes/s of a device and
    seconds, inside a domain and across.
    """

    tpot_s: Floats
    tpot_spread: Floats
    tokens: Floats
    batch: Floats
    ranks: Floats
    receivers: Floats
    prompt_bytes: Floats
    link: Floats
    link_s: Floats
    network: Floats
    network_s: Floats
    kv_capacity_tokens: Floats
    max_sequences: Floats
    fits: Flags

    def take(self, rows: NDArray[np.int64]) -> DecodePool:
        """The rows at these indices."""
        return DecodePool(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def prefill_pool(
    model: ModelSpec,
    group: NodeGroup,
    table: LayoutTable,
    workload: Workload,
    *,
    headroom: float = DEFAULT_HEADROOM,
    coefficients: Coefficients | None = None,
    serving: Serving = PLAIN,
) -> PrefillPool:
    """Every layout of `table` as a prefill replica; `max_num_batched_tokens` is the chunk."""
    chosen = coefficients if coefficients is not None else default_coefficients()
    case, demand = _case(model, group, table, workload, coefficients=chosen, serving=serving)
    together = np.floor(demand.chunk / demand.fresh)
    carried = np.where(together >= 1.0, together * demand.fresh, demand.chunk)
    tokens_per_s, parts = prefill_only(case, replace(demand, chunk=carried), chosen)
    chunks = np.maximum(np.ceil(demand.fresh / carried), 1.0)
    chunk_s = total(parts) + prompt_host_s(case, chosen)
    memory = _memory(
        model, group, table, case, context=workload.isl + 1, headroom=headroom, serving=serving
    )
    grid, values, engine = case.grid, chosen.values, case.engine
    host = values[engine.request_s] + values[engine.prompt_token_s] * demand.isl
    return PrefillPool(
        host_s=host * values[engine.build_request] + np.zeros_like(grid.tp),
        prefill_s=chunk_s * (1.0 + (chunks - 1.0) / grid.pp),
        requests_per_s=tokens_per_s / demand.fresh * grid.dp,
        servers=grid.dp,
        senders=grid.tp * grid.pp,
        fits=memory.fits & (memory.max_sequences >= 2.0 * np.maximum(together, 1.0) * grid.dp),
    )


def decode_pool(
    model: ModelSpec,
    group: NodeGroup,
    table: LayoutTable,
    workload: Workload,
    *,
    headroom: float = DEFAULT_HEADROOM,
    coefficients: Coefficients | None = None,
    serving: Serving = PLAIN,
) -> DecodePool:
    """Every layout of `table` as a decode replica with its batch, `max_num_seqs`, full."""
    chosen = coefficients if coefficients is not None else default_coefficients()
    case, demand = _case(model, group, table, workload, coefficients=chosen, serving=serving)
    grid, fabric = case.grid, case.fabric(chosen)
    context = workload.isl + workload.osl
    memory = _memory(model, group, table, case, context=context, headroom=headroom, serving=serving)
    prompt = _memory(
        model, group, table, case, context=workload.isl, headroom=headroom, serving=serving
    )
    limit = np.asarray(table.max_num_seqs, dtype=np.float64)
    batch = np.maximum(np.minimum(limit, memory.max_sequences), grid.dp)
    tpot = _decode_step_s(case, demand, chosen, batch=batch / grid.dp) / demand.accepted
    spread = np.sqrt(kept_variance(demand) / (demand.accepted * demand.tokens))

    def column(value: Floats) -> Floats:
        return value + np.zeros_like(grid.tp)

    return DecodePool(
        tpot_s=tpot,
        tpot_spread=spread,
        tokens=demand.tokens,
        batch=batch,
        ranks=grid.dp,
        receivers=grid.tp * grid.pp,
        prompt_bytes=prompt.sequence_bytes,
        link=column(fabric.link_bandwidth),
        link_s=column(fabric.link_latency_s),
        network=column(fabric.network_bandwidth),
        network_s=column(fabric.network_latency_s),
        kv_capacity_tokens=memory.kv_capacity_tokens,
        max_sequences=memory.max_sequences,
        fits=memory.fits,
    )


def _case(
    model: ModelSpec,
    group: NodeGroup,
    table: LayoutTable,
    workload: Workload,
    *,
    coefficients: Coefficients,
    serving: Serving,
) -> tuple[Case, Demand]:
    case = make_case(
        as_held(model, group.device),
        group,
        table,
        coefficients,
        backend=serving.backend,
        version=serving.version,
    )
    limit = np.asarray(table.max_num_seqs, dtype=np.float64)
    demand = demand_of(case.grid, workload, serving, table, offered=limit, running=limit)
    return case, demand


def _memory(
    model: ModelSpec,
    group: NodeGroup,
    table: LayoutTable,
    case: Case,
    *,
    context: int,
    headroom: float,
    serving: Serving,
) -> MemoryTable:
    return memory_table(
        as_held(model, group.device),
        group.device,
        case.grid,
        table,
        context=context,
        headroom=headroom,
        offloaded=serving.offload_bytes,
    )


def _decode_step_s(
    case: Case, demand: Demand, coefficients: Coefficients, *, batch: Floats
) -> Floats:
    """Seconds of a step of `batch` sequences of a rank and no prompts, drafts included."""
    grid, layers = case.grid, case.body.layers
    held = batch / np.clip(np.floor(batch), 1.0, grid.pp)  # of a micro-batch
    ranks = np.where(case.is_moe, grid.dp, 1.0)
    nothing = np.zeros_like(batch)
    load = StepLoad(
        decode=held,
        context=demand.isl + demand.osl / 2.0,
        prefill=nothing,
        prompt=demand.isl,
        routed=held * demand.queries * ranks,
        queries=demand.queries,
        cached=demand.cached,
        offloaded=demand.offloaded,
    )
    step = total(step_parts(case, load, coefficients)) * (1.0 + demand.draft_share)
    return np.asarray(step * np.ceil(layers / grid.pp) * grid.pp / layers)
