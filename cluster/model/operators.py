"""The fused operators a layer consists of: names, and builders for what all families share.

Operator names are the vocabulary of per-operator sharding (`Layout.dims`): those of `COLUMN_FIRST`
are cut by column and their partner by row in the Megatron scheme (arXiv:1909.08053); the rest are
whole on every rank. Gate and up projections are one operator, as are q, k and v, because engines
run them as one matrix product.

A shape is (input, output). Norms, biases and gates are `extra_params` of the operator they feed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.model.formats import NumberFormat
from cluster.model.model_spec import (
    AttentionKind,
    AttentionSpec,
    Group,
    LayerKind,
    Operator,
)
from cluster.model.quantization import Quantization

QKV = "qkv"
ATTENTION_OUT = "attention_out"
LATENT_DOWN = "latent_down"  # MLA: hidden to the compressed query and key-value, one product
Q_UP = "q_up"  # MLA: compressed query (or hidden) to the heads
KV_UP = "kv_up"  # MLA: compressed key-value to the heads; absorbed into attention in decode
INDEX_Q = "index_q"  # sparse attention: the indexer's queries
INDEX_K = "index_k"  # sparse attention: the indexer's key and head weights
LINEAR_IN = "linear_in"  # gated delta net: q, k, v, z, and the two gates
LINEAR_OUT = "linear_out"
FFN_UP = "ffn_up"
FFN_DOWN = "ffn_down"
ROUTER = "router"
EXPERT_UP = "expert_up"
EXPERT_DOWN = "expert_down"
SHARED_UP = "shared_up"
SHARED_DOWN = "shared_down"

# (cut by column, cut by row): the pairs of the Megatron scheme.
MEGATRON_PAIRS: tuple[tuple[str, str], ...] = (
    (QKV, ATTENTION_OUT),
    (Q_UP, ATTENTION_OUT),
    (KV_UP, ATTENTION_OUT),
    (LINEAR_IN, LINEAR_OUT),
    (FFN_UP, FFN_DOWN),
    (EXPERT_UP, EXPERT_DOWN),
    (SHARED_UP, SHARED_DOWN),
)
COLUMN_FIRST = frozenset(column for column, _ in MEGATRON_PAIRS)
ROW_SECOND = frozenset(row for _, row in MEGATRON_PAIRS)

Attention = tuple[tuple[Operator, ...], AttentionSpec]


@dataclass(frozen=True, kw_only=True)
class LayerContext:
    """What every builder needs: the width of the residual stream and how the layer is stored."""

    hidden: int
    index: int
    quantization: Quantization

    def format(self, module: str) -> NumberFormat:
        """Format of a module of this layer, e.g. `self_attn.q_proj`."""
        return self.quantization.format_of(f"model.layers.{self.index}.{module}")


def stack(
    labels: Sequence[str], build: Callable[[str, int], LayerKind]
) -> tuple[tuple[LayerKind, int], ...]:
    """Layers with one label are one kind; kinds in order of first appearance.

    Interleaved kinds are counted together, not run by run: a cost is a sum over kinds. `build`
    gets the label and the index of a layer in the middle of its kind, because checkpoints often
    leave the first and last layers unquantised.
    """
    positions: dict[str, list[int]] = {}
    for index, label in enumerate(labels):
        positions.setdefault(label, []).append(index)
    return tuple(
        (build(label, found[len(found) // 2]), len(found)) for label, found in positions.items()
    )


def grouped_attention(
    layer: LayerContext,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    context_limit: int | None = None,
    qkv_bias: bool = False,
    out_bias: bool = False,
    output_gate: bool = False,
    shared_kv_projection: bool = False,
    extra_params: int = 0,
) -> Attention:
    """Multi-head, grouped or multi-query attention.

    `output_gate` doubles the query projection (Qwen3-Next); `shared_kv_projection` computes keys
    and values from one product (Gemma 4), yet caches both. A sliding window bounds what is
    attended and what is stored alike.
    """
    queries = heads * head_dim * (2 if output_gate else 1)
    keys_values = kv_heads * head_dim * (1 if shared_kv_projection else 2)
    cols = queries + keys_values
    operators = (
        Operator(
            name=QKV,
            group=Group.ATTENTION,
            rows=layer.hidden,
            cols=cols,
            extra_params=extra_params + (cols if qkv_bias else 0),
            format=layer.format("self_attn.q_proj"),
        ),
        Operator(
            name=ATTENTION_OUT,
            group=Group.ATTENTION,
            rows=heads * head_dim,
            cols=layer.hidden,
            extra_params=layer.hidden if out_bias else 0,
            format=layer.format("self_attn.o_proj"),
        ),
    )
    return operators, AttentionSpec(
        kind=AttentionKind.GQA,
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=head_dim,
        v_dim=head_dim,
        kv_elements=2 * kv_heads * head_dim,
        context_limit=context_limit,
        window=context_limit,
    )


def feed_forward(
    layer: LayerContext,
    *,
    intermediate: int,
    group: Group = Group.DENSE,
    module: str = "mlp",
    extra_params: int = 0,
) -> tuple[Operator, ...]:
    """A gated feed-forward (SwiGLU, GeGLU), dense or a shared expert."""
    up, down = (SHARED_UP, SHARED_DOWN) if group is Group.SHARED else (FFN_UP, FFN_DOWN)
    return (
        Operator(
            name=up,
            group=group,
            rows=layer.hidden,
            cols=2 * intermediate,
            extra_params=extra_params,
            format=layer.format(f"{module}.gate_proj"),
        ),
        Operator(
            name=down,
            group=group,
            rows=intermediate,
            cols=layer.hidden,
            format=layer.format(f"{module}.down_proj"),
        ),
    )


def routed_experts(
    layer: LayerContext,
    *,
    experts: int,
    per_token: int,
    intermediate: int,
    module: str = "mlp.experts.0.gate_proj",
    router_extra: int = 0,
    bias: bool = False,
) -> tuple[Operator, ...]:
    """A router (in the base format) and `experts` gated feed-forwards, `per_token` of them used."""
    number_format = layer.format(module)
    return (
        Operator(
            name=ROUTER,
            group=Group.REPLICATED,
            rows=layer.hidden,
            cols=experts,
            extra_params=router_extra,
            format=layer.quantization.base,
        ),
        Operator(
            name=EXPERT_UP,
            group=Group.EXPERTS,
            rows=layer.hidden,
            cols=2 * intermediate,
            copies=experts,
            active=per_token,
            extra_params=experts * 2 * intermediate if bias else 0,
            format=number_format,
        ),
        Operator(
            name=EXPERT_DOWN,
            group=Group.EXPERTS,
            rows=intermediate,
            cols=layer.hidden,
            copies=experts,
            active=per_token,
            extra_params=experts * layer.hidden if bias else 0,
            format=number_format,
        ),
    )
