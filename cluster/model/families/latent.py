"""Mixtures over latent attention: DeepSeek V2, V3, R1, V3.2, Kimi K2 and K2.5, GLM-5.

The first `first_k_dense_replace` layers are dense. Multi-token-prediction layers
(`num_nextn_predict_layers`) are left out of every count: they serve speculation only.
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster.model.attention_variants import latent_attention
from cluster.model.config_fields import Fields
from cluster.model.families.common import FamilyConfig, Heads, assemble, read_per_token
from cluster.model.model_spec import Group, LayerKind, ModelSpec
from cluster.model.operators import Attention, LayerContext, feed_forward, routed_experts


@dataclass(frozen=True, kw_only=True)
class _Latent:
    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    index_heads: int = 0
    index_dim: int = 0
    index_topk: int | None = None

    @classmethod
    def read(cls, fields: Fields, *, sparse: bool) -> _Latent:
        return cls(
            heads=fields.integer("num_attention_heads", maximum=65_536),
            q_rank=fields.optional_integer("q_lora_rank"),
            kv_rank=fields.integer("kv_lora_rank"),
            nope_dim=fields.integer("qk_nope_head_dim"),
            rope_dim=fields.integer("qk_rope_head_dim"),
            v_dim=fields.integer("v_head_dim"),
            index_heads=fields.integer("index_n_heads") if sparse else 0,
            index_dim=fields.integer("index_head_dim") if sparse else 0,
            index_topk=fields.integer("index_topk") if sparse else None,
        )

    def attention(self, layer: LayerContext) -> Attention:
        return latent_attention(
            layer,
            heads=self.heads,
            q_rank=self.q_rank,
            kv_rank=self.kv_rank,
            nope_dim=self.nope_dim,
            rope_dim=self.rope_dim,
            v_dim=self.v_dim,
            index_heads=self.index_heads,
            index_dim=self.index_dim,
            index_topk=self.index_topk,
            extra_params=layer.hidden,
        )


def deepseek(config: FamilyConfig) -> ModelSpec:
    """DeepSeek V2, V3, R1 and Kimi K2: latent attention over the whole context."""
    return _mixture(config, latent=_Latent.read(config.fields, sparse=False))


def deepseek_sparse(config: FamilyConfig) -> ModelSpec:
    """DeepSeek V3.2 and GLM-5: latent attention to the best `index_topk` tokens."""
    return _mixture(config, latent=_Latent.read(config.fields, sparse=True))


def _mixture(config: FamilyConfig, *, latent: _Latent) -> ModelSpec:
    fields, layers = config.fields, config.layers
    experts = fields.integer("n_routed_experts")
    per_token = read_per_token(fields, "num_experts_per_tok", experts=experts)
    shared = fields.integer("n_shared_experts", default=0, minimum=0, maximum=1024)
    first = fields.integer("first_k_dense_replace", default=0, minimum=0)
    frequency = fields.integer("moe_layer_freq", default=1)
    labels = [
        "moe" if index >= first and index % frequency == 0 else "dense" for index in range(layers)
    ]
    # The bias that balances experts without a loss (V3 on) is a parameter per expert.
    bias = experts if fields.text("topk_method", default="") == "noaux_tc" else 0

    def build(label: str, index: int) -> LayerKind:
        layer = config.layer(index)
        attention, spec = latent.attention(layer)
        if label == "dense":
            body = feed_forward(
                layer,
                intermediate=fields.integer("intermediate_size"),
                extra_params=config.hidden,
            )
            return LayerKind(name=label, operators=attention + body, attention=spec)
        size = fields.integer("moe_intermediate_size")
        body = routed_experts(
            layer,
            experts=experts,
            per_token=per_token,
            intermediate=size,
            router_extra=config.hidden + bias,
        )
        if shared:
            body += feed_forward(
                layer,
                intermediate=shared * size,
                group=Group.SHARED,
                module="mlp.shared_experts",
            )
        return LayerKind(name=label, operators=attention + body, attention=spec)

    return assemble(
        config,
        labels=labels,
        build=build,
        heads=Heads(heads=latent.heads, kv_heads=1, head_dim=latent.nope_dim + latent.rope_dim),
        experts=experts,
        experts_per_token=per_token,
    )
