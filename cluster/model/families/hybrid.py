"""Layers of two kinds of attention: Qwen3-Next and Qwen3.5 (linear, full), Gemma 4 (sliding, full).

Qwen3.5: three gated delta nets to one full attention with an output gate, every layer a mixture
with one gated shared expert. Gemma 4: full layers have their own head dimension and fewer
key-value heads, and compute keys and values from one projection; its mixture runs beside a dense
feed-forward, each with norms of its own.
"""

from __future__ import annotations

from dataclasses import replace

from cluster.model.attention_variants import gated_delta_net
from cluster.model.families.common import (
    FULL,
    LINEAR,
    SLIDING,
    FamilyConfig,
    assemble,
    every_nth,
    read_heads,
    read_layer_types,
    read_per_token,
)
from cluster.model.model_spec import Group, LayerKind, ModelSpec
from cluster.model.operators import (
    Attention,
    LayerContext,
    feed_forward,
    grouped_attention,
    routed_experts,
)


def qwen3_next(config: FamilyConfig) -> ModelSpec:
    """Qwen3-Next and the text part of Qwen3.5 mixtures."""
    fields, heads, layers = config.fields, read_heads(config.fields), config.layers
    experts = fields.integer("num_experts")
    per_token = read_per_token(fields, "num_experts_per_tok", experts=experts)
    period = fields.integer("full_attention_interval", default=4)
    labels = read_layer_types(fields, layers=layers) or every_nth(
        layers=layers, period=period, nth=FULL, other=LINEAR
    )
    shared = fields.integer("shared_expert_intermediate_size")

    def attention(layer: LayerContext, *, label: str) -> Attention:
        if label == LINEAR:
            return gated_delta_net(
                layer,
                key_heads=fields.integer("linear_num_key_heads"),
                value_heads=fields.integer("linear_num_value_heads"),
                key_dim=fields.integer("linear_key_head_dim"),
                value_dim=fields.integer("linear_value_head_dim"),
                kernel=fields.integer("linear_conv_kernel_dim"),
                extra_params=config.hidden,
            )
        return grouped_attention(
            layer,
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            output_gate=fields.boolean("attn_output_gate", default=True),
            extra_params=config.hidden + 2 * heads.head_dim,
        )

    def build(label: str, index: int) -> LayerKind:
        layer = config.layer(index)
        operators, spec = attention(layer, label=label)
        operators += routed_experts(
            layer,
            experts=experts,
            per_token=per_token,
            intermediate=fields.integer("moe_intermediate_size"),
            router_extra=config.hidden,
        )
        operators += feed_forward(
            layer,
            intermediate=shared,
            group=Group.SHARED,
            module="mlp.shared_expert",
            extra_params=config.hidden,  # the shared expert's gate: hidden to one
        )
        return LayerKind(name=label, operators=operators, attention=spec)

    return assemble(
        config,
        labels=labels,
        build=build,
        heads=heads,
        experts=experts,
        experts_per_token=per_token,
    )


def gemma4(config: FamilyConfig) -> ModelSpec:
    """Gemma 4 (the text part). Per-layer embeddings and shared caches (E2B, E4B) are refused."""
    fields, layers = config.fields, config.layers
    for name in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        if value := fields.integer(name, default=0, minimum=0):
            fields.fail(
                name,
                problem=f"is {value}: per-layer inputs and shared KV caches are not modelled.",
                fix="use a Gemma 4 without them (26B-A4B, 31B).",
            )
    sliding = read_heads(fields, head_dim=256)
    same = fields.boolean("attention_k_eq_v", default=False)
    wide = fields.integer("global_head_dim", default=sliding.head_dim)
    kv_full = fields.integer("num_global_key_value_heads", default=sliding.kv_heads)
    full = replace(sliding, head_dim=wide, kv_heads=kv_full if same else sliding.kv_heads)
    window = fields.integer("sliding_window")
    labels = read_layer_types(fields, layers=layers) or every_nth(
        layers=layers, period=6, nth=FULL, other=SLIDING
    )
    is_moe = fields.boolean("enable_moe_block", default=False)
    experts = fields.integer("num_experts") if is_moe else 0
    per_token = read_per_token(fields, "top_k_experts", experts=experts) if is_moe else 0
    hidden = config.hidden

    def build(label: str, index: int) -> LayerKind:
        layer = config.layer(index)
        heads = full if label == FULL else sliding
        operators, spec = grouped_attention(
            layer,
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            context_limit=window if label == SLIDING else None,
            shared_kv_projection=same and label == FULL,
            extra_params=2 * hidden + 2 * heads.head_dim + 1,  # + the layer's scale
        )
        if is_moe:
            # Router: an input scale and one per expert; three more norms around the two branches.
            operators += routed_experts(
                layer,
                experts=experts,
                per_token=per_token,
                intermediate=fields.integer("moe_intermediate_size"),
                module="experts.gate_up_proj",
                router_extra=4 * hidden + experts,
            )
        operators += feed_forward(
            layer,
            intermediate=fields.integer("intermediate_size"),
            group=Group.SHARED if is_moe else Group.DENSE,
            extra_params=2 * hidden,
        )
        return LayerKind(name=label, operators=operators, attention=spec)

    return assemble(
        config,
        labels=labels,
        build=build,
        heads=sliding,
        experts=experts,
        experts_per_token=per_token,
        tied=True,
    )
