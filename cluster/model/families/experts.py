"""Mixtures over grouped-query attention: Mixtral, Qwen3-MoE, MiniMax-M2, gpt-oss, Llama 4.

Parameters of a mixture layer: router hidden x experts, and 3 x hidden x intermediate per expert.
"""

from __future__ import annotations

from dataclasses import replace

from cluster.model.families.common import (
    FULL,
    SLIDING,
    FamilyConfig,
    assemble,
    every_nth,
    read_heads,
    read_layer_types,
    read_per_token,
)
from cluster.model.families.dense import window_labels
from cluster.model.model_spec import Group, LayerKind, ModelSpec
from cluster.model.operators import feed_forward, grouped_attention, routed_experts


def mixtral(config: FamilyConfig) -> ModelSpec:
    """Mixtral 8x7B and 8x22B."""
    fields, heads = config.fields, read_heads(config.fields)
    experts = fields.integer("num_local_experts")
    per_token = read_per_token(fields, "num_experts_per_tok", experts=experts)
    labels, window = window_labels(config, layers=config.layers)

    def build(label: str, index: int) -> LayerKind:
        layer = config.layer(index)
        attention, spec = grouped_attention(
            layer,
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            context_limit=window if label == SLIDING else None,
            extra_params=config.hidden,
        )
        moe = routed_experts(
            layer,
            experts=experts,
            per_token=per_token,
            intermediate=fields.integer("intermediate_size"),
            module="block_sparse_moe.experts.0.w1",
            router_extra=config.hidden,
        )
        return LayerKind(name=label, operators=attention + moe, attention=spec)

    return assemble(
        config,
        labels=labels,
        build=build,
        heads=heads,
        experts=experts,
        experts_per_token=per_token,
    )


def qwen3_moe(config: FamilyConfig) -> ModelSpec:
    """Qwen3-MoE: a mixture every `decoder_sparse_step` layers except `mlp_only_layers`."""
    fields, heads = config.fields, read_heads(config.fields)
    experts = fields.integer("num_experts")
    per_token = read_per_token(fields, "num_experts_per_tok", experts=experts)
    step = fields.integer("decoder_sparse_step", default=1)
    dense_only = set(fields.integers("mlp_only_layers"))
    bias = fields.boolean("attention_bias", default=False)
    sparse = [(index + 1) % step == 0 and index not in dense_only for index in range(config.layers)]
    labels = ["moe" if is_sparse else "dense" for is_sparse in sparse]

    def build(label: str, index: int) -> LayerKind:
        layer = config.layer(index)
        attention, spec = grouped_attention(
            layer,
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            qkv_bias=bias,
            out_bias=bias,
            extra_params=config.hidden + 2 * heads.head_dim,
        )
        if label == "moe":
            body = routed_experts(
                layer,
                experts=experts,
                per_token=per_token,
                intermediate=fields.integer("moe_intermediate_size"),
                router_extra=config.hidden,
            )
        else:
            body = feed_forward(
                layer,
                intermediate=fields.integer("intermediate_size"),
                extra_params=config.hidden,
            )
        return LayerKind(name=label, operators=attention + body, attention=spec)

    return assemble(
        config,
        labels=labels,
        build=build,
        heads=heads,
        experts=experts,
        experts_per_token=per_token,
    )


def minimax_m2(config: FamilyConfig) -> ModelSpec:
    """MiniMax-M2: query-key norms over all heads together, a routing bias per expert."""
    fields, heads = config.fields, read_heads(config.fields)
    experts = fields.integer("num_local_experts")
    per_token = read_per_token(fields, "num_experts_per_tok", experts=experts)
    if fields.integer("shared_intermediate_size", default=0, minimum=0):
        fields.fail(
            "shared_intermediate_size", problem="is not 0.", fix="shared experts are not published."
        )
    qk_norm = 0
    if fields.boolean("use_qk_norm", default=False):
        qk_norm = (heads.heads + heads.kv_heads) * heads.head_dim
    routing_bias = experts if fields.boolean("use_routing_bias", default=False) else 0

    def build(label: str, index: int) -> LayerKind:
        layer = config.layer(index)
        attention, spec = grouped_attention(
            layer,
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            extra_params=config.hidden + qk_norm,
        )
        if qk_norm:  # over all heads together: two sums of squares per token and layer
            spec = replace(spec, tp_norms=2)
        moe = routed_experts(
            layer,
            experts=experts,
            per_token=per_token,
            intermediate=fields.integer("intermediate_size"),
            module="block_sparse_moe.experts.0.w1",
            router_extra=config.hidden + routing_bias,
        )
        return LayerKind(name=label, operators=attention + moe, attention=spec)

    return assemble(
        config,
        labels=["moe"] * config.layers,
        build=build,
        heads=heads,
        experts=experts,
        experts_per_token=per_token,
    )


def gpt_oss(config: FamilyConfig) -> ModelSpec:
    """gpt-oss: sliding and full layers in turn, biases everywhere, a learned sink per head."""
    fields, heads = config.fields, read_heads(config.fields)
    experts = fields.integer("num_local_experts")
    per_token = read_per_token(fields, "num_experts_per_tok", experts=experts)
    window = fields.integer("sliding_window", default=128)
    bias = fields.boolean("attention_bias", default=True)
    labels = read_layer_types(fields, layers=config.layers) or every_nth(
        layers=config.layers, period=2, nth=FULL, other=SLIDING
    )

    def build(label: str, index: int) -> LayerKind:
        layer = config.layer(index)
        attention, spec = grouped_attention(
            layer,
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            context_limit=window if label == SLIDING else None,
            qkv_bias=bias,
            out_bias=bias,
            extra_params=config.hidden + heads.heads,
        )
        moe = routed_experts(
            layer,
            experts=experts,
            per_token=per_token,
            intermediate=fields.integer("intermediate_size"),
            module="mlp.experts.gate_up_proj",
            router_extra=config.hidden + experts,
            bias=True,
        )
        return LayerKind(name=label, operators=attention + moe, attention=spec)

    return assemble(
        config,
        labels=labels,
        build=build,
        heads=heads,
        experts=experts,
        experts_per_token=per_token,
    )


def llama4(config: FamilyConfig) -> ModelSpec:
    """Llama 4: a mixture with one shared expert every few layers, chunked attention on 3 of 4.

    A chunk bounds what is attended and stored like a window does (at most `attention_chunk_size`).
    """
    fields, heads, layers = config.fields, read_heads(config.fields), config.layers
    experts = fields.integer("num_local_experts")
    per_token = read_per_token(fields, "num_experts_per_tok", experts=experts)
    step = fields.integer("interleave_moe_layer_step", default=1)
    chunk = fields.optional_integer("attention_chunk_size")
    mixtures = set(fields.integers("moe_layers")) or set(range(step - 1, layers, step))
    # `no_rope_layers` holds 1 where the layer has rotary positions, and those are the chunked ones.
    rotary = fields.integers("no_rope_layers")
    if rotary and len(rotary) != layers:
        fields.fail("no_rope_layers", problem=f"lists {len(rotary)} of {layers} layers.")
    spans = [SLIDING if flag else FULL for flag in rotary] or (
        read_layer_types(fields, layers=layers)
        or every_nth(layers=layers, period=4, nth=FULL, other=SLIDING)
    )
    labels = [
        f"{'moe' if index in mixtures else 'dense'}/{span}" for index, span in enumerate(spans)
    ]

    def build(label: str, index: int) -> LayerKind:
        layer = config.layer(index)
        attention, spec = grouped_attention(
            layer,
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            context_limit=chunk if label.endswith(SLIDING) else None,
            extra_params=config.hidden,
        )
        if label.startswith("moe"):
            size = fields.integer("intermediate_size")
            body = routed_experts(
                layer,
                experts=experts,
                per_token=per_token,
                intermediate=size,
                module="feed_forward.experts.gate_up_proj",
                router_extra=config.hidden,
            ) + feed_forward(
                layer,
                intermediate=size,
                group=Group.SHARED,
                module="feed_forward.shared_expert",
            )
        else:
            body = feed_forward(
                layer,
                intermediate=fields.integer("intermediate_size_mlp"),
                module="feed_forward",
                extra_params=config.hidden,
            )
        return LayerKind(name=label, operators=attention + body, attention=spec)

    return assemble(
        config,
        labels=labels,
        build=build,
        heads=heads,
        experts=experts,
        experts_per_token=per_token,
    )
