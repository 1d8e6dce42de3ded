"""How long does one engine step take? All layers of a replica, as a sum of named parts.

A step carries `decode` sequences (each `queries` tokens: 1, or 1 + drafts) and `prefill` prompt
tokens through every layer; matrix products see them together, attention apart. After the attention
output and after the feed-forward, tensor parallelism sums partial results: an all-reduce. Routed
experts on other ranks need an all-to-all before and after (attention data-parallel), an all-gather
and a reduce-scatter (experts cut by tensor over several data-parallel ranks), or, without data
parallelism, only the all-reduce that is there anyway.

Shapes: loads (n,), parts (n,) seconds. With pp stages the parts add up the whole pipeline pass.
Invariants: every part >= 0; the step is monotone in both loads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel import attention, collectives, compute
from cluster.costmodel.case import Case
from cluster.costmodel.chain import EXPERTS, FFN, HEAD, PROJECTIONS
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.collectives import Fabric

Floats = NDArray[np.float64]
Parts = dict[str, Floats]

PART_NAMES = (
    "projections",
    "attention",
    "ffn",
    "experts",
    "head",
    "small_kernels",
    "elementwise",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
    "offload",
    "host",
)
"""Parts of one step. The estimate adds `bubble`, `prefill_share`, `stragglers` and `drafts`."""

SOURCES: dict[str, str] = {
    "projections": "gemm",
    "attention": "attention",
    "ffn": "gemm",
    "experts": "experts",
    "head": "gemm",
    "small_kernels": "kernel",
    "elementwise": "elementwise",
    "all_reduce": "link",
    "all_gather": "link",
    "reduce_scatter": "link",
    "all_to_all": "all_to_all",
    "send_recv": "network",
    "host": "engine",
}
"""Which coefficients a part rests on: the prefix under which their source is found."""


@dataclass(frozen=True, kw_only=True)
class StepLoad:
    """What one step of one data-parallel rank carries, shape (n,) each.

    `decode` sequences at `context` tokens, `queries` tokens each; `prefill` tokens of prompts of
    `prompt` tokens of which `cached` need no work; `routed` tokens that all ranks together send
    through the experts in this step; `offloaded` bytes of weights a device reads from the host.
    """

    decode: Floats
    context: Floats
    prefill: Floats
    prompt: Floats
    routed: Floats
    queries: Floats
    cached: Floats
    offloaded: Floats

    @property
    def tokens(self) -> Floats:
        """Tokens that pass through the layers."""
        return self.decode * self.queries + self.prefill

    @property
    def sampled(self) -> Floats:
        """Tokens that logits are computed of."""
        fresh = np.maximum(self.prompt - self.cached, 1.0)
        return np.asarray(self.decode * self.queries + self.prefill / fresh)


def step_parts(case: Case, load: StepLoad, coefficients: Coefficients) -> Parts:
    """Seconds of one step by part name, each shape (n,)."""
    fabric = case.fabric(coefficients)
    parts = _kernels(case, load, coefficients)
    parts |= _exchanges(case, load, fabric, coefficients)
    values, engine = coefficients.values, case.engine
    mixed = load.prefill > 0.0
    build = values[engine.build_time] * np.where(mixed, values[engine.build_prefill], 1.0)
    parts = {name: seconds * build for name, seconds in parts.items()}
    parts["offload"] = load.offloaded / case.machine.host_bandwidth
    parts["host"] = values[engine.step_s] + values[engine.sequence_s] * load.decode
    return parts


def prompt_host_s(case: Case, coefficients: Coefficients) -> Floats:
    """Host seconds that a chunk of a prompt waits for: steps with prompts are launched eagerly.

    Other sequences do not feel it where the host runs ahead of the device, as engines now do.
    """
    values, engine = coefficients.values, case.engine
    eager = small_kernels(case, coefficients) + case.body.operators
    return np.asarray(values[engine.prefill_step_s] + eager * values[engine.prefill_kernel_s])


def total(parts: Parts) -> Floats:
    """Sum of the parts, shape (n,)."""
    return np.asarray(np.sum(np.stack(list(parts.values())), axis=0), dtype=np.float64)


def small_kernels(case: Case, coefficients: Coefficients) -> Floats:
    """Norms, rotary embeddings, cache writes, routing: kernels of all layers beside operators."""
    body = case.body
    return np.asarray(
        coefficients.value("kernels.gqa") * body.grouped_layers
        + coefficients.value("kernels.mla") * body.latent_layers
        + coefficients.value("kernels.linear") * body.linear_layers
        + coefficients.value("kernels.indexer") * body.indexed_layers
        + coefficients.value("kernels.tp_norm") * body.tp_norms
        + coefficients.value("kernels.moe") * body.moe_layers
        + coefficients.value("kernels.dense") * (body.layers - body.moe_layers)
    )


def _kernels(case: Case, load: StepLoad, coefficients: Coefficients) -> Parts:
    values, engine, machine, body = coefficients.values, case.engine, case.machine, case.body
    seen = compute.Tokens(here=load.tokens, sampled=load.sampled, routed=load.routed)
    seconds = compute.operators_s(case, seen, coefficients)
    parts = {
        name: _sum_of(code, seconds, case)
        for name, code in (
            ("projections", PROJECTIONS),
            ("ffn", FFN),
            ("experts", EXPERTS),
            ("head", HEAD),
        )
    }
    decode = attention.decode_s(case, load.decode, load.context, coefficients, queries=load.queries)
    prefill = attention.prefill_s(case, load.prefill, load.prompt, coefficients, cached=load.cached)
    parts["attention"] = (case.cores.count * (decode + prefill)).sum(axis=0)
    kernel_s = values[machine.small_s] * values[engine.kernels]
    parts["small_kernels"] = np.broadcast_to(
        kernel_s * small_kernels(case, coefficients), load.tokens.shape
    )
    passes = coefficients.value("elementwise.passes") * body.layers * body.hidden
    parts["elementwise"] = passes * load.tokens * machine.width / machine.memory_bandwidth
    return parts


def _sum_of(code: int, seconds: Floats, case: Case) -> Floats:
    """Seconds of the operators of one part, (n,)."""
    part = case.chain.part
    if part.shape[1] == 1:  # one model: whole rows
        return np.asarray(seconds[part[:, 0] == code].sum(axis=0))
    return np.asarray(np.where(part == code, seconds, 0.0).sum(axis=0))


def _exchanges(case: Case, load: StepLoad, fabric: Fabric, coefficients: Coefficients) -> Parts:
    grid, body, width = case.grid, case.body, case.machine.width
    size = load.tokens * body.hidden * width
    alone = grid.dp == 1.0
    # After attention and after a dense feed-forward; after the embedding; after experts that no
    # other data-parallel rank shares.
    sums = 2.0 * body.layers - body.moe_layers + 1.0 + np.where(alone, body.moe_layers, 0.0)
    # A norm over all heads needs one fp32 sum of squares per token from every rank.
    norms = body.tp_norms * collectives.all_reduce(4.0 * load.tokens, grid.tp_ring, fabric)
    parts = {"all_reduce": norms + sums * collectives.all_reduce(size, grid.tp_ring, fabric)}
    spread = ~alone & (grid.moe_ep > 1.0)
    # Each token goes to at most k ranks; a rank of a tensor-parallel group sends its share.
    copies = np.minimum(body.chosen, grid.moe_ep)
    sent = size / grid.tp * compute.skew(case, load.routed, coefficients)
    dispatch = np.where(body.eight_bits, 0.5, 1.0)  # activations travel as fp8
    there = collectives.all_to_all(sent * dispatch, copies, grid.moe_ep_ring, fabric)
    back = collectives.all_to_all(sent, copies, grid.moe_ep_ring, fabric)
    parts["all_to_all"] = np.where(spread, body.moe_layers * (there + back), 0.0)
    inner = spread & (grid.moe_tp > 1.0)
    cut = ~alone & (grid.moe_ep == 1.0) & case.is_moe
    shared = np.where(cut, size * grid.dp, size * copies)
    gathered = collectives.all_gather(shared, grid.moe_tp_ring, fabric)
    scattered = collectives.reduce_scatter(shared, grid.moe_tp_ring, fabric)
    logits = load.sampled * body.vocab * width
    parts["all_gather"] = np.where(
        inner | cut, body.moe_layers * gathered, 0.0
    ) + collectives.all_gather(logits, grid.tp_ring, fabric)
    parts["reduce_scatter"] = np.where(inner | cut, body.moe_layers * scattered, 0.0)
    hop = collectives.send_recv(size, leaves_domain=grid.stage_leaves_domain, fabric=fabric)
    parts["send_recv"] = (grid.pp - 1.0) * hop
    return parts
