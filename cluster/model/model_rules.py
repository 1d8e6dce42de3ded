"""Which degrees a model's own numbers allow: heads, experts, widths, layers, vocabulary.

Key-value heads are split while tp divides them and repeated on tp / kv_heads ranks beyond that;
the key heads of linear attention are split only. A latent cache (MLA) counts as one key-value
head, whole on every rank. These are the conditions vLLM's parallel layers assert. Shards that cut
through a block of fp8 scales are allowed: engines pad them (measured runs of MiniMax-M2.5 at
moe_tp = 8 do).
"""

from __future__ import annotations

import numpy as np

from cluster.model.layout import Layout, LayoutTable
from cluster.model.rule_kinds import (
    VOCAB_PADDING,
    Floats,
    Rule,
    Shape,
    divisors_near,
    first_not_multiple,
    limit_margin,
    multiple_margin,
    worst_multiple,
)


def _heads(shape: Shape, table: LayoutTable) -> Floats:
    return worst_multiple(shape.heads, of=table.tp)


def _explain_heads(shape: Shape, layout: Layout) -> tuple[str, str]:
    heads = first_not_multiple(shape.heads, of=layout.tp)
    return (
        f"{heads} attention heads do not split over tp = {layout.tp} (remainder "
        f"{heads % layout.tp}).",
        f"use tp = {divisors_near(heads, below=layout.tp)}.",
    )


def _kv_heads(shape: Shape, table: LayoutTable) -> Floats:
    margin = worst_multiple(shape.linear_key_heads, of=table.tp)
    for kv_heads in shape.kv_heads:
        split = multiple_margin(np.full(len(table), kv_heads), of=table.tp)
        repeat = multiple_margin(table.tp, of=np.full(len(table), kv_heads))
        margin = np.minimum(margin, np.where(table.tp <= kv_heads, split, repeat))
    return margin


def _explain_kv_heads(shape: Shape, layout: Layout) -> tuple[str, str]:
    tp = layout.tp
    for heads in shape.linear_key_heads:
        if heads % tp:
            return (
                f"{heads} key heads of linear attention do not split over tp = {tp} (remainder "
                f"{heads % tp}), and they are never repeated.",
                f"use tp = {divisors_near(heads, below=tp)}.",
            )
    heads = next(h for h in shape.kv_heads if (h % tp if tp <= h else tp % h))
    if tp <= heads:
        problem = f"{heads} key-value heads do not split over tp = {tp} (remainder {heads % tp})."
    else:
        problem = (
            f"tp = {tp} is beyond {heads} key-value heads and no multiple of them (remainder "
            f"{tp % heads}), so they cannot be repeated evenly."
        )
    return problem, f"use tp = {divisors_near(heads, below=tp)}" + (
        f" or {tp - tp % heads}." if tp > heads else "."
    )


def _experts(shape: Shape, table: LayoutTable) -> Floats:
    if not shape.experts:
        # No experts: the feed-forward follows the attention grid (see the module of the rules).
        apart = np.abs(table.moe_tp - table.tp) / np.maximum(table.tp, 1)
        return np.asarray(-apart - np.abs(table.moe_ep - table.dp) / np.maximum(table.dp, 1))
    return worst_multiple((shape.experts,), of=table.moe_ep)


def _explain_experts(shape: Shape, layout: Layout) -> tuple[str, str]:
    if not shape.experts:
        return (
            f"the model has no experts, so moe_tp = {layout.moe_tp} and moe_ep = {layout.moe_ep} "
            f"must follow tp = {layout.tp} and dp = {layout.dp}.",
            f"use moe_tp = {layout.tp}, moe_ep = {layout.dp}.",
        )
    return (
        f"{shape.experts} experts do not spread evenly over moe_ep = {layout.moe_ep} (remainder "
        f"{shape.experts % layout.moe_ep}).",
        f"use moe_ep = {divisors_near(shape.experts, below=layout.moe_ep)}.",
    )


def _expert_width(shape: Shape, table: LayoutTable) -> Floats:
    return worst_multiple(shape.expert_width, of=table.moe_tp)


def _explain_expert_width(shape: Shape, layout: Layout) -> tuple[str, str]:
    width = first_not_multiple(shape.expert_width, of=layout.moe_tp)
    return (
        f"an expert's width {width} does not split over moe_tp = {layout.moe_tp} (remainder "
        f"{width % layout.moe_tp}).",
        f"use moe_tp = {divisors_near(width, below=layout.moe_tp)}, and moe_ep for the rest.",
    )


def _feed_forward(shape: Shape, table: LayoutTable) -> Floats:
    return worst_multiple(shape.feed_forward, of=table.tp)


def _explain_feed_forward(shape: Shape, layout: Layout) -> tuple[str, str]:
    width = first_not_multiple(shape.feed_forward, of=layout.tp)
    return (
        f"the feed-forward's width {width} does not split over tp = {layout.tp} (remainder "
        f"{width % layout.tp}).",
        f"use tp = {divisors_near(width, below=layout.tp)}.",
    )


def _layers(shape: Shape, table: LayoutTable) -> Floats:
    return limit_margin(table.pp, limit=shape.layers)


def _explain_layers(shape: Shape, layout: Layout) -> tuple[str, str]:
    return (
        f"pp = {layout.pp} stages are more than the model's {shape.layers} layers.",
        f"use pp <= {shape.layers}.",
    )


def _vocabulary(shape: Shape, table: LayoutTable) -> Floats:
    return worst_multiple((shape.padded_vocab,), of=table.tp)


def _explain_vocabulary(shape: Shape, layout: Layout) -> tuple[str, str]:
    return (
        f"the vocabulary, padded to a multiple of {VOCAB_PADDING} = {shape.padded_vocab}, does not "
        f"split over tp = {layout.tp} (remainder {shape.padded_vocab % layout.tp}).",
        f"use tp = {divisors_near(shape.padded_vocab, below=layout.tp)}.",
    )


MODEL_RULES: tuple[Rule, ...] = (
    Rule("heads", _heads, _explain_heads),
    Rule("kv_heads", _kv_heads, _explain_kv_heads),
    Rule("experts", _experts, _explain_experts),
    Rule("expert_width", _expert_width, _explain_expert_width),
    Rule("feed_forward", _feed_forward, _explain_feed_forward),
    Rule("layers", _layers, _explain_layers),
    Rule("vocabulary", _vocabulary, _explain_vocabulary),
)
