"""Which of our models and devices do published tables mean? Names, formats, and two models more.

Every published name maps to a catalogue model or to one built here from public dimensions; a name
that is in neither is a reason not to answer. Number formats follow the checkpoints the tables were
measured with: FP8 or NVFP4 in the linear layers and an FP8 cache.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from cluster.model.catalogue import get_model
from cluster.model.devices import get_device
from cluster.model.formats import NumberFormat
from cluster.model.hardware import Device, NodeGroup
from cluster.model.hf_config import parse_config
from cluster.model.model_spec import (
    AttentionKind,
    AttentionSpec,
    Group,
    LayerKind,
    ModelSpec,
    Operator,
)
from cluster.model.operators import ATTENTION_OUT, FFN_DOWN, FFN_UP, QKV
from cluster.model.requantize import with_formats

CATALOGUE = {
    "Llama-3.1-8B": "llama-3.1-8b",
    "Llama-3.3-70B": "llama-3.1-70b",
    "Llama-3.1-405B": "llama-3.1-405b",
    "Llama-4-Maverick": "llama-4-maverick",
    "Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen3-235B-A22B": "qwen3-235b-a22b",
    "gpt-oss-20b": "gpt-oss-20b",
    "gpt-oss-120b": "gpt-oss-120b",
    "DeepSeek-V3": "deepseek-v3",
    "DeepSeek-V3/R1": "deepseek-v3",
    "DeepSeek-R1/V3": "deepseek-v3",
    "DeepSeek-R1": "deepseek-r1",
    "DeepSeek-R1-0528": "deepseek-r1",
    "Kimi-K2.5-NVFP4": "kimi-k2.5",
}
# config.json of meta-llama/Llama-4-Scout-17B-16E: Maverick's layers, all of them mixtures of 16.
_SCOUT = {
    "model_type": "llama4_text",
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "interleave_moe_layer_step": 1,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "attention_chunk_size": 8192,
    "vocab_size": 202048,
    "max_position_embeddings": 10485760,
}
# arXiv:2307.09288, table 1 and config.json of meta-llama/Llama-2-70b-hf.
_LLAMA2 = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
DEVICES_PER_NODE = {"GB200": 4, "GB300": 4}
KEPT_IN_FP8 = frozenset({Group.ATTENTION})  # nvidia/DeepSeek-R1-FP4 leaves attention unquantised


@cache
def published_model(name: str, precision: str) -> ModelSpec | None:
    """The model of a published name, stored as `precision` says; None where it is not at hand."""
    if name == "Llama-4-Scout":
        data = {
            "model_type": "llama4",
            "architectures": ["Llama4ForConditionalGeneration"],
            "text_config": _SCOUT,
        }
        model = parse_config(data, source="Llama-4-Scout config.json", name="llama-4-scout")
    elif name in CATALOGUE:
        model = get_model(CATALOGUE[name])
    else:
        return None
    if name.startswith("gpt-oss"):  # served as its checkpoint is, whatever the table's heading
        return with_formats(model, kv=NumberFormat.FP8)
    if precision == "fp8":
        fmt = None if name.startswith("DeepSeek") else NumberFormat.FP8  # DeepSeek is fp8 as stored
        return with_formats(model, weights=fmt, kv=NumberFormat.FP8)
    if precision in ("fp4", "nvfp4"):
        quantised = with_formats(model, weights=NumberFormat.NVFP4, kv=NumberFormat.FP8)
        return _attention_of(quantised, model) if name.startswith("DeepSeek") else quantised
    return None


def _attention_of(model: ModelSpec, other: ModelSpec) -> ModelSpec:
    """`model` with the attention operators of `other`."""
    layers = tuple(
        (
            replace(
                kind,
                operators=tuple(
                    theirs if theirs.group in KEPT_IN_FP8 else ours
                    for ours, theirs in zip(kind.operators, stored.operators, strict=True)
                ),
            ),
            count,
        )
        for (kind, count), (stored, _) in zip(model.layers, other.layers, strict=True)
    )
    return replace(model, layers=layers)


def published_device(name: str) -> Device | None:
    """The device of a published name, None where it is in no table."""
    if name == "H800":  # an H100 with 400 GB/s of NVLink, both directions together
        return replace(get_device("h100"), name="h800", link_bandwidth=200e9)
    known = {"H100", "H200", "B200", "B300", "GB200", "GB300", "MI300X", "RTX-PRO-6000"}
    return get_device(name) if name in known else None


def nodes_for(name: str, devices: int, device: Device) -> NodeGroup:
    """Enough nodes of the device's usual size."""
    each = DEVICES_PER_NODE.get(name, 8)
    return NodeGroup(nodes=-(-devices // each), devices_per_node=each, device=device)


@cache
def llama2_70b() -> ModelSpec:
    """Llama 2 70B in 16 bits."""
    return parse_config(_LLAMA2, source="arXiv:2307.09288", name="llama-2-70b")


@cache
def bloom_176b() -> ModelSpec:
    """BLOOM 176B in 16 bits: 70 layers, width 14,336, 112 heads, two matrices per feed-forward.

    Source: arXiv:2211.05100, table 3. Biases are left out (0.1 % of the weights).
    """
    hidden, heads, vocab = 14_336, 112, 250_880
    operators = (
        Operator(name=QKV, group=Group.ATTENTION, rows=hidden, cols=3 * hidden),
        Operator(name=ATTENTION_OUT, group=Group.ATTENTION, rows=hidden, cols=hidden),
        Operator(name=FFN_UP, group=Group.DENSE, rows=hidden, cols=4 * hidden),
        Operator(name=FFN_DOWN, group=Group.DENSE, rows=4 * hidden, cols=hidden),
    )
    attention = AttentionSpec(
        kind=AttentionKind.GQA,
        heads=heads,
        kv_heads=heads,
        qk_dim=hidden // heads,
        v_dim=hidden // heads,
        kv_elements=2 * hidden,
    )
    return ModelSpec(
        name="bloom-176b",
        architecture="BloomForCausalLM",
        hidden=hidden,
        vocab=vocab,
        max_context=8192,
        layers=((LayerKind(name="dense", operators=operators, attention=attention), 70),),
        embedding=Operator(name="embedding", group=Group.VOCABULARY, rows=vocab, cols=hidden),
        head=None,
        heads=heads,
        kv_heads=heads,
        source="arXiv:2211.05100",
    )
