"""Attention blocks beyond grouped queries: latent (MLA), sparse by an indexer, gated delta net.

MLA caches kv_lora_rank + rope_dim elements a token for all heads together (DeepSeek-V2,
arXiv:2405.04434, §2.1). In decode the up-projection of keys and values is absorbed into the
queries and outputs, so that attention runs at `decode_qk_dim` / `decode_v_dim` against the latent.
The indexer (DeepSeek-V3.2) keeps one more key of `index_head_dim` per token, scores the whole
context with it and attends to the best `index_topk` tokens only.
A gated delta net (arXiv:2412.06464) holds a fp32 matrix of key_dim x value_dim per value head
whatever the context, and the last kernel-1 inputs of its convolution.
"""

from __future__ import annotations

from cluster.model.model_spec import AttentionKind, AttentionSpec, Group, Operator
from cluster.model.operators import (
    ATTENTION_OUT,
    INDEX_K,
    INDEX_Q,
    KV_UP,
    LATENT_DOWN,
    LINEAR_IN,
    LINEAR_OUT,
    Q_UP,
    Attention,
    LayerContext,
)

# The recurrent state is fp32; `state_elements` counts elements of the (16-bit) KV cache format.
_FP32_PER_CACHE_ELEMENT = 2


def latent_attention(
    layer: LayerContext,
    *,
    heads: int,
    q_rank: int | None,
    kv_rank: int,
    nope_dim: int,
    rope_dim: int,
    v_dim: int,
    index_heads: int = 0,
    index_dim: int = 0,
    index_topk: int | None = None,
    extra_params: int = 0,
) -> Attention:
    """Multi-head latent attention, optionally sparse; `q_rank` None = queries not compressed."""
    qk_dim = nope_dim + rope_dim
    latent_cols = (q_rank or 0) + kv_rank + rope_dim
    norms = (q_rank or 0) + kv_rank
    up_format = layer.format("self_attn.q_b_proj" if q_rank else "self_attn.q_proj")
    operators = [
        Operator(
            name=LATENT_DOWN,
            group=Group.REPLICATED,
            rows=layer.hidden,
            cols=latent_cols,
            extra_params=extra_params + norms,
            format=layer.format("self_attn.kv_a_proj_with_mqa"),
        ),
        Operator(
            name=Q_UP,
            group=Group.ATTENTION,
            rows=q_rank or layer.hidden,
            cols=heads * qk_dim,
            format=up_format,
        ),
        Operator(
            name=KV_UP,
            group=Group.ATTENTION,
            rows=kv_rank,
            cols=heads * (nope_dim + v_dim),
            format=layer.format("self_attn.kv_b_proj"),
        ),
    ]
    if index_heads:
        operators += _indexer(layer, q_rank=q_rank, index_heads=index_heads, index_dim=index_dim)
    operators.append(
        Operator(
            name=ATTENTION_OUT,
            group=Group.ATTENTION,
            rows=heads * v_dim,
            cols=layer.hidden,
            format=layer.format("self_attn.o_proj"),
        )
    )
    return tuple(operators), AttentionSpec(
        kind=AttentionKind.MLA,
        heads=heads,
        kv_heads=1,  # one latent for all heads, whole on every tp rank
        qk_dim=qk_dim,
        v_dim=v_dim,
        kv_elements=kv_rank + rope_dim + index_dim,
        context_limit=index_topk,
        decode_qk_dim=kv_rank + rope_dim,
        decode_v_dim=kv_rank,
        index_heads=index_heads,
        index_dim=index_dim,
    )


def _indexer(
    layer: LayerContext, *, q_rank: int | None, index_heads: int, index_dim: int
) -> list[Operator]:
    # wq_b; wk and weights_proj with the key's LayerNorm (weight and bias). vLLM replicates both.
    return [
        Operator(
            name=INDEX_Q,
            group=Group.REPLICATED,
            rows=q_rank or layer.hidden,
            cols=index_heads * index_dim,
            format=layer.format("self_attn.indexer.wq_b"),
        ),
        Operator(
            name=INDEX_K,
            group=Group.REPLICATED,
            rows=layer.hidden,
            cols=index_dim + index_heads,
            extra_params=2 * index_dim,
            format=layer.format("self_attn.indexer.wk"),
        ),
    ]


def gated_delta_net(
    layer: LayerContext,
    *,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    kernel: int,
    extra_params: int = 0,
) -> Attention:
    """Gated delta net: q, k of `key_heads`, v and gate z of `value_heads`, a short convolution."""
    convolved = 2 * key_heads * key_dim + value_heads * value_dim
    cols = convolved + value_heads * value_dim + 2 * value_heads  # + z, + the gates b and a
    small = convolved * kernel + 2 * value_heads + value_dim  # conv1d, A_log and dt_bias, norm
    operators = (
        Operator(
            name=LINEAR_IN,
            group=Group.ATTENTION,
            rows=layer.hidden,
            cols=cols,
            extra_params=extra_params + small,
            format=layer.format("linear_attn.in_proj_qkv"),
        ),
        Operator(
            name=LINEAR_OUT,
            group=Group.ATTENTION,
            rows=value_heads * value_dim,
            cols=layer.hidden,
            format=layer.format("linear_attn.out_proj"),
        ),
    )
    state = _FP32_PER_CACHE_ELEMENT * value_heads * key_dim * value_dim
    return operators, AttentionSpec(
        kind=AttentionKind.LINEAR,
        heads=value_heads,
        kv_heads=key_heads,
        qk_dim=key_dim,
        v_dim=value_dim,
        kv_elements=0,
        state_elements=state + convolved * (kernel - 1),
    )
