"""What a model is made of: layers of fused operators with shapes, and what a token costs in them.

A model is a list of (layer kind, how many layers of it). A layer kind is a chain of fused
operators. Two FLOPs per weight and token (one multiply, one add) is the only formula here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from cluster.model.formats import NumberFormat


class Group(StrEnum):
    """Which degrees of a layout shard an operator."""

    ATTENTION = "attention"  # sharded by tp, replicated by dp
    DENSE = "dense"  # a dense feed-forward: sharded by tp
    EXPERTS = "experts"  # routed experts: sharded by moe_tp, spread by moe_ep
    SHARED = "shared"  # shared experts: sharded by tp, replicated by ep
    REPLICATED = "replicated"  # norms, routers: whole on every rank
    VOCABULARY = "vocabulary"  # embedding and head: sharded by tp


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One fused operator of one layer: `copies` matrices of shape (rows → cols).

    `copies` counts matrices held (experts), `active` how many of them a token passes through.
    `extra_params` are biases, norms, gates: memory, no matrix product.
    """

    name: str
    group: Group
    rows: int
    cols: int
    copies: int = 1
    active: float = 1.0
    extra_params: int = 0
    format: NumberFormat = NumberFormat.BF16

    @property
    def params(self) -> int:
        """Weights held, all copies."""
        return self.copies * self.rows * self.cols + self.extra_params

    @property
    def active_params(self) -> float:
        """Weights a single token passes through."""
        return self.active * self.rows * self.cols + self.extra_params

    @property
    def weight_bytes(self) -> float:
        """Bytes of all copies in the operator's format (extra parameters in bf16 at most)."""
        extra = min(2.0, NumberFormat.FP32.bytes if self.format is NumberFormat.FP32 else 2.0)
        return self.copies * self.rows * self.cols * self.format.bytes + self.extra_params * extra

    @property
    def flops_per_token(self) -> float:
        """Floating point operations of the matrix products for one token."""
        return 2.0 * self.active * self.rows * self.cols


class AttentionKind(StrEnum):
    """How a layer attends."""

    GQA = "gqa"  # multi-head, grouped or multi-query
    MLA = "mla"  # multi-head latent attention (DeepSeek-V2, arXiv:2405.04434)
    LINEAR = "linear"  # gated linear attention: a state of fixed size per sequence


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """The attention core of a layer (the part whose cost depends on the context).

    `kv_elements` is what one token leaves in the KV cache of this layer, all heads;
    `state_elements` what one sequence holds whatever its length (linear attention);
    `context_limit` bounds the attended context (sliding window, chunk, sparse top-k), None = all.
    `window` bounds what is *stored* (a sliding window frees older blocks), None = all tokens.
    `qk_dim`, `v_dim` per head in prefill; `decode_qk_dim`, `decode_v_dim` in decode where they
    differ (MLA absorbed into the latent), 0 = the same. `tp_norms`: norms over all heads together,
    whose sum tensor parallelism has to reduce. `index_heads` x `index_dim`: queries of a
    sparse-attention indexer that scores the whole context before `context_limit` applies.
    """

    kind: AttentionKind
    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    kv_elements: int
    state_elements: int = 0
    context_limit: int | None = None
    window: int | None = None
    decode_qk_dim: int = 0
    decode_v_dim: int = 0
    index_heads: int = 0
    index_dim: int = 0
    tp_norms: int = 0


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """A kind of layer: its operators in order, and its attention core."""

    name: str
    operators: tuple[Operator, ...]
    attention: AttentionSpec

    @property
    def is_moe(self) -> bool:
        """Whether the layer routes tokens to experts."""
        return any(op.group is Group.EXPERTS for op in self.operators)

    @property
    def params(self) -> int:
        """Weights of one such layer."""
        return sum(op.params for op in self.operators)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model as the planner sees it. `layers` is an ordered tuple of (kind, count)."""

    name: str
    architecture: str
    hidden: int
    vocab: int
    max_context: int
    layers: tuple[tuple[LayerKind, int], ...]
    embedding: Operator
    head: Operator | None  # None: tied to the embedding (computed, but stored once)
    final_extra_params: int = 0
    experts: int = 0
    experts_per_token: int = 0
    heads: int = 1
    kv_heads: int = 1
    kv_format: NumberFormat = NumberFormat.BF16
    source: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def num_layers(self) -> int:
        """Transformer layers."""
        return sum(count for _, count in self.layers)

    @property
    def params(self) -> int:
        """All weights of the language model (multi-token-prediction layers not counted)."""
        head = self.head.params if self.head else 0
        body = sum(kind.params * count for kind, count in self.layers)
        return body + self.embedding.params + head + self.final_extra_params

    @property
    def active_params(self) -> float:
        """Weights one token passes through (the embedding look-up counted as its table)."""
        head = self.head.params if self.head else 0
        body = sum(op.active_params * count for kind, count in self.layers for op in kind.operators)
        return body + self.embedding.params + head + self.final_extra_params

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights in their formats."""
        head = self.head.weight_bytes if self.head else 0.0
        body = sum(op.weight_bytes * count for kind, count in self.layers for op in kind.operators)
        return body + self.embedding.weight_bytes + head + 2.0 * self.final_extra_params

    def kv_bytes(self, context: int) -> float:
        """Bytes of KV cache (and linear state) of one sequence of `context` tokens, all layers."""
        total = 0.0
        for kind, count in self.layers:
            attention = kind.attention
            stored = context if attention.window is None else min(context, attention.window)
            elements = stored * attention.kv_elements + attention.state_elements
            total += count * elements * self.kv_format.bytes
        return total

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes one more token adds while every window is still open."""
        return self.kv_bytes(1) - self.kv_bytes(0)
