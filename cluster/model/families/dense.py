"""Dense decoders: Llama and its kin (Mistral, Qwen2, Qwen3, Phi-3), and Gemma 1 to 3.

They differ in biases (Qwen2 on q, k, v; Llama by flag), query-key norms (Qwen3, Gemma 3), tying,
norms per layer (Gemma 2 and 3 have four), and which layers see a sliding window.
"""

from __future__ import annotations

from dataclasses import replace

from cluster.model.families.common import (
    FULL,
    SLIDING,
    FamilyConfig,
    Heads,
    assemble,
    every_nth,
    read_heads,
    read_layer_types,
)
from cluster.model.model_spec import LayerKind, ModelSpec
from cluster.model.operators import feed_forward, grouped_attention


def window_labels(config: FamilyConfig, *, layers: int) -> tuple[list[str], int | None]:
    """FULL or SLIDING per layer and the window, as the Mistral and Qwen configurations say it."""
    fields = config.fields
    window = fields.optional_integer("sliding_window")
    types = read_layer_types(fields, layers=layers)
    if types is not None:
        return types, window
    if window is None or not fields.boolean("use_sliding_window", default=True):
        return [FULL] * layers, None
    first = fields.integer("max_window_layers", default=0, minimum=0)
    return [FULL if index < first else SLIDING for index in range(layers)], window


def _decoder(
    config: FamilyConfig,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: bool = False,
) -> ModelSpec:
    fields, heads = config.fields, read_heads(config.fields)
    intermediate = fields.integer("intermediate_size")
    labels, window = window_labels(config, layers=config.layers)
    norm = 2 * heads.head_dim if qk_norm else 0

    def build(label: str, index: int) -> LayerKind:
        layer = config.layer(index)
        attention, spec = grouped_attention(
            layer,
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            context_limit=window if label == SLIDING else None,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            extra_params=config.hidden + norm,
        )
        mlp = feed_forward(layer, intermediate=intermediate, extra_params=config.hidden)
        return LayerKind(name=label, operators=attention + mlp, attention=spec)

    return assemble(config, labels=labels, build=build, heads=heads)


def llama(config: FamilyConfig) -> ModelSpec:
    """Llama 2, 3, 3.1, SmolLM2; biases by `attention_bias`."""
    bias = config.fields.boolean("attention_bias", default=False)
    return _decoder(config, qkv_bias=bias, out_bias=bias)


def mistral(config: FamilyConfig) -> ModelSpec:
    """Mistral 7B and Phi-3: no biases."""
    return _decoder(config)


def qwen2(config: FamilyConfig) -> ModelSpec:
    """Qwen2 and 2.5: biases on q, k, v only."""
    fields = config.fields
    # Qwen2 files carry a window that `use_sliding_window` (off by default) leaves unused.
    if not fields.present("use_sliding_window") and not fields.present("layer_types"):
        unused = {**fields.data, "use_sliding_window": False}
        config = replace(config, fields=replace(fields, data=unused))
    return _decoder(config, qkv_bias=True)


def qwen3(config: FamilyConfig) -> ModelSpec:
    """Qwen3: norms on queries and keys; biases by `attention_bias`."""
    bias = config.fields.boolean("attention_bias", default=False)
    return _decoder(config, qkv_bias=bias, out_bias=bias, qk_norm=True)


def gemma(config: FamilyConfig) -> ModelSpec:
    """Gemma 1: tied, head dimension 256."""
    heads = read_heads(config.fields, head_dim=256)
    labels = [FULL] * config.layers
    return _gemma(config, heads=heads, labels=labels, window=None, norms=2, qk=False)


def gemma2(config: FamilyConfig) -> ModelSpec:
    """Gemma 2: every other layer slides, four norms per layer."""
    heads = read_heads(config.fields, head_dim=256)
    window = config.fields.integer("sliding_window", default=4096)
    labels = every_nth(layers=config.layers, period=2, nth=FULL, other=SLIDING)
    return _gemma(config, heads=heads, labels=labels, window=window, norms=4, qk=False)


def gemma3(config: FamilyConfig) -> ModelSpec:
    """Gemma 3 (the text part): five sliding layers to a full one, query-key norms.

    Published files leave out what equals transformers' `Gemma3TextConfig` defaults.
    """
    fields, layers = config.fields, config.layers
    filled = {"num_attention_heads": 8, "num_key_value_heads": 4, **fields.data}
    heads = read_heads(replace(fields, data=filled), head_dim=256)
    window = fields.integer("sliding_window", default=4096)
    period = fields.integer("sliding_window_pattern", default=6)
    labels = read_layer_types(fields, layers=layers) or every_nth(
        layers=layers, period=period, nth=FULL, other=SLIDING
    )
    return _gemma(
        config,
        heads=heads,
        labels=labels,
        window=window,
        norms=4,
        qk=True,
        vocab=262_208,
        max_context=131_072,
    )


def _gemma(
    config: FamilyConfig,
    *,
    heads: Heads,
    labels: list[str],
    window: int | None,
    norms: int,
    qk: bool,
    vocab: int | None = None,
    max_context: int | None = None,
) -> ModelSpec:
    intermediate = config.fields.integer("intermediate_size")
    half = norms // 2 * config.hidden

    def build(label: str, index: int) -> LayerKind:
        layer = config.layer(index)
        attention, spec = grouped_attention(
            layer,
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            context_limit=window if label == SLIDING else None,
            extra_params=half + (2 * heads.head_dim if qk else 0),
        )
        mlp = feed_forward(layer, intermediate=intermediate, extra_params=half)
        return LayerKind(name=label, operators=attention + mlp, attention=spec)

    return assemble(
        config,
        labels=labels,
        build=build,
        heads=heads,
        tied=True,
        vocab=vocab,
        max_context=max_context,
    )
