"""GPT-MoE-1.8T and its 64 GPUs as the benches see them, and the curve of one layout.

The model's shapes are those that are public (see `reported_model`); the GPUs are GB200 with the
article's 192 GB. A layout's curve holds every batch and chunk that fits in memory with 20 % left
free and gives each pipeline stage a sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.estimate import EstimateTable, estimate
from cluster.model.devices import get_device
from cluster.model.formats import NumberFormat
from cluster.model.hardware import NodeGroup
from cluster.model.layout import Layout, LayoutTable
from cluster.model.model_spec import (
    AttentionKind,
    AttentionSpec,
    Group,
    LayerKind,
    ModelSpec,
    Operator,
)
from cluster.model.operators import ATTENTION_OUT, EXPERT_DOWN, EXPERT_UP, QKV, ROUTER
from cluster.model.requantize import with_formats
from cluster.model.workload import Workload

DEVICES = 64
MEMORY = 192e9
EXPERTS = 16
Degrees = tuple[int, int, int]  # TP, EP, PP; DP replicas fill the 64 devices

# The source of the article: 128 tokens upwards in steps of 128 or 256 up to 8,192, "over 2.7K"
# combinations with 73 layouts, so 37 lengths: nine steps of 128, then 256.
CHUNKS = (*range(128, 1281, 128), *range(1536, 8193, 256))
FINE_CHUNKS = tuple(sorted({56, *range(16, 513, 16), *CHUNKS}))
BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)


def reported_model() -> ModelSpec:
    """GPT-MoE-1.8T with the shapes that are public; bf16, before quantisation.

    Hidden 15,360, experts of width 30,720, 16 of them, 2 per token: the row "GPT-MOE-1.8T" of
    ai-dynamo/aiconfigurator, collector/common_test_cases.py. 120 layers, about 111e9 parameters an
    expert and 55e9 of multi-query attention: press reports of 2023 on the model it stands for
    (kdnuggets.com/2023/07/gpt4-details-leaked.html). Two matrices per expert and one key-value
    head give just that: 2 * 15360 * 30720 * 120 = 113e9 and 2 * 15360^2 * 120 = 57e9. Number of
    heads and vocabulary are ours.
    """
    hidden, width, layers, heads, vocab = 15_360, 30_720, 120, 128, 100_352
    head_dim = hidden // heads
    expert = {"group": Group.EXPERTS, "copies": EXPERTS, "active": 2.0}
    operators = (
        Operator(name=QKV, group=Group.ATTENTION, rows=hidden, cols=hidden + 2 * head_dim),
        Operator(name=ATTENTION_OUT, group=Group.ATTENTION, rows=hidden, cols=hidden),
        Operator(name=ROUTER, group=Group.REPLICATED, rows=hidden, cols=EXPERTS),
        Operator(name=EXPERT_UP, rows=hidden, cols=width, **expert),  # type: ignore[arg-type]
        Operator(name=EXPERT_DOWN, rows=width, cols=hidden, **expert),  # type: ignore[arg-type]
    )
    attention = AttentionSpec(
        kind=AttentionKind.GQA,
        heads=heads,
        kv_heads=1,
        qk_dim=head_dim,
        v_dim=head_dim,
        kv_elements=2 * head_dim,
    )
    table = Operator(name="embedding", group=Group.VOCABULARY, rows=vocab, cols=hidden)
    return ModelSpec(
        name="gpt-moe-1.8t (reported shapes)",
        architecture="GptMoe1800B",
        hidden=hidden,
        vocab=vocab,
        max_context=131_072,
        layers=((LayerKind(name="moe", operators=operators, attention=attention), layers),),
        embedding=table,
        head=replace(table, name="head", rows=hidden, cols=vocab),
        final_extra_params=hidden,
        experts=EXPERTS,
        experts_per_token=2,
        heads=heads,
        kv_heads=1,
        source="see bench/gpt_moe_curves.py",
    )


def fp4(model: ModelSpec) -> ModelSpec:
    """The model as it is served: weights in NVFP4, cache in FP8."""
    return with_formats(model, weights=NumberFormat.NVFP4, kv=NumberFormat.FP8)


def hardware() -> NodeGroup:
    """64 GB200 with the article's 192 GB, in one NVLink domain."""
    device = replace(get_device("gb200"), memory_bytes=MEMORY)
    return NodeGroup(nodes=DEVICES // 4, devices_per_node=4, device=device)


def hardware_in_eights() -> NodeGroup:
    """The same devices in nodes of 8 whose NVLink ends at the node."""
    device = replace(hardware().device, domain=8, domain_spans_nodes=False)
    return NodeGroup(nodes=DEVICES // 8, devices_per_node=8, device=device)


def name_of(degrees: Degrees) -> str:
    """`EP16DP4`, the article's way of writing."""
    tp, ep, pp = degrees
    named = (("TP", tp), ("EP", ep), ("PP", pp), ("DP", DEVICES // (tp * ep * pp)))
    return "".join(f"{letters}{value}" for letters, value in named if value > 1)


def layout_of(degrees: Degrees, *, batch: int = 1, chunk: int = 128) -> Layout:
    """The layout of degrees with `batch` sequences and `chunk` tokens per expert-parallel rank."""
    tp, ep, pp = degrees
    return Layout(
        tp=tp,
        dp=ep,
        pp=pp,
        moe_tp=tp,
        moe_ep=ep,
        replicas=max(1, DEVICES // (tp * ep * pp)),
        max_num_seqs=batch * ep,
        max_num_batched_tokens=chunk,
    )


@dataclass(frozen=True, kw_only=True)
class Point:
    """One operating point; `batch` and `chunk` per expert-parallel rank, parts of TPOT in ms."""

    layout: str
    batch: int
    chunk: int
    tokens_per_s_per_device: float
    tokens_per_s_per_user: float
    ttft_s: float
    tpot_parts_ms: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """All batches and chunks of one layout, and which of them fit."""

    degrees: Degrees
    table: LayoutTable
    estimates: EstimateTable
    ok: NDArray[np.bool_]

    def busiest(
        self,
        *,
        per_user: float = 0.0,
        chunk: int | None = None,
        batch: int | None = None,
        ttft_s: float = math.inf,
    ) -> Point | None:
        """Most tokens/s/device among points of at least `per_user` tokens/s/user."""
        made = self.estimates
        mask = self.ok & (made.tokens_per_s_per_user >= per_user) & (made.ttft_s <= ttft_s)
        if chunk is not None:
            mask &= self.table.max_num_batched_tokens == chunk
        if batch is not None:
            mask &= self.table.max_num_seqs == batch * self.table.dp
        return self._best(mask, made.tokens_per_s_per_device)

    def fastest(self, *, per_device: float) -> Point | None:
        """Most tokens/s/user among points of at least `per_device` tokens/s/device."""
        made = self.estimates
        return self._best(
            self.ok & (made.tokens_per_s_per_device >= per_device), made.tokens_per_s_per_user
        )

    def best_product(self) -> float:
        """Largest tokens/s/device x tokens/s/user, 0 where nothing fits."""
        made = self.estimates
        value = np.where(self.ok, made.tokens_per_s_per_device * made.tokens_per_s_per_user, 0.0)
        return float(value.max())

    def _best(self, mask: NDArray[np.bool_], value: NDArray[np.float64]) -> Point | None:
        if not mask.any():
            return None
        index, made = int(np.argmax(np.where(mask, value, -np.inf))), self.estimates
        return Point(
            layout=name_of(self.degrees),
            batch=int(self.table.max_num_seqs[index] // self.table.dp[index]),
            chunk=int(self.table.max_num_batched_tokens[index]),
            tokens_per_s_per_device=float(made.tokens_per_s_per_device[index]),
            tokens_per_s_per_user=float(made.tokens_per_s_per_user[index]),
            ttft_s=float(made.ttft_s[index]),
            tpot_parts_ms={
                name: float(part[index]) * 1e3 for name, part in made.parts.items() if part[index]
            },
        )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the claims are computed for."""

    model: ModelSpec
    group: NodeGroup
    workload: Workload
    batches: tuple[int, ...] = BATCHES
    chunks: tuple[int, ...] = FINE_CHUNKS

    def curve(self, degrees: Degrees) -> Curve:
        """Estimate every batch and chunk of a layout."""
        table = LayoutTable.from_layouts(
            layout_of(degrees, batch=batch, chunk=chunk)
            for batch in self.batches
            for chunk in self.chunks
        )
        made = estimate(
            self.model, self.group, table, self.workload, concurrency=table.max_num_seqs
        )
        full = made.running >= table.max_num_seqs
        fills = table.max_num_seqs >= table.dp * table.pp  # one sequence per stage
        return Curve(degrees=degrees, table=table, estimates=made, ok=made.fits & full & fills)


def what_ifs(setting: Setting) -> dict[str, Setting]:
    """The setting with one thing about its devices changed: which of them a result hangs on."""
    group = setting.group
    device = group.device
    free = 1e6
    changed = {
        "links a million times as fast": replace(
            device,
            link_bandwidth=device.link_bandwidth * free,
            link_latency_s=device.link_latency_s / free,
            network_bandwidth=device.network_bandwidth * free,
            network_latency_s=device.network_latency_s / free,
        ),
        "twice the FLOP/s": replace(
            device, flops={fmt: 2.0 * rate for fmt, rate in device.flops.items()}
        ),
        "twice the memory bandwidth": replace(
            device, memory_bandwidth=2.0 * device.memory_bandwidth
        ),
    }
    return {
        name: replace(setting, group=replace(group, device=new)) for name, new in changed.items()
    }
