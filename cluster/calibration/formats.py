"""In which number formats did a run hold its model?

A run names a precision (fp8, fp4, int4, bf16, or nothing: as stored) and the formats of dense and
expert products. What a published checkpoint of that precision really stores is narrower:

- a checkpoint that is itself of that class (gpt-oss in mxfp4, Kimi-K2.5 in int4, DeepSeek in fp8)
  is served as it is, with the modules it leaves in 16 bits;
- published fp8 checkpoints of mixtures are block-scaled (DeepSeek, MiniMax, Qwen3, GLM);
- NVIDIA's FP4 checkpoints of mixtures keep attention projections in 16 bits, and some of them
  shared experts (`exclude_modules` of their hf_quant_config.json, listed below).

The KV cache of a run is not recorded. Assumed: fp8 where weights are fp8 or fp4.
"""

from __future__ import annotations

from dataclasses import replace

from cluster.calibration.runs import Run
from cluster.model.formats import NumberFormat
from cluster.model.model_spec import Group, LayerKind, ModelSpec, Operator
from cluster.model.operators import (
    ATTENTION_OUT,
    INDEX_K,
    INDEX_Q,
    KV_UP,
    LATENT_DOWN,
    LINEAR_IN,
    LINEAR_OUT,
    Q_UP,
    QKV,
    ROUTER,
    SHARED_DOWN,
    SHARED_UP,
)

_FORMATS = {
    "fp8": NumberFormat.FP8,
    "fp8_block": NumberFormat.FP8_BLOCK,
    "nvfp4": NumberFormat.NVFP4,
    "mxfp4": NumberFormat.MXFP4,
    "int4_wo": NumberFormat.INT4,
    "int4": NumberFormat.INT4,
    "int8": NumberFormat.INT8,
    "bf16": NumberFormat.BF16,
    "bfloat16": NumberFormat.BF16,
    "fp16": NumberFormat.FP16,
}
FORMAT_NAMES = tuple(sorted(_FORMATS))
_CLASS = {
    NumberFormat.FP8: "fp8",
    NumberFormat.FP8_BLOCK: "fp8",
    NumberFormat.NVFP4: "fp4",
    NumberFormat.MXFP4: "fp4",
    NumberFormat.INT4: "int4",
    NumberFormat.INT8: "int8",
}
_KV_FP8 = frozenset({"fp8", "fp4"})

_MLA_INPUTS = frozenset({LATENT_DOWN, Q_UP, KV_UP})
_ATTENTION = _MLA_INPUTS | {ATTENTION_OUT, QKV, INDEX_Q, INDEX_K, LINEAR_IN, LINEAR_OUT}
_SHARED = frozenset({SHARED_UP, SHARED_DOWN})
_SIXTEEN_BITS_IN_FP4: tuple[tuple[str, frozenset[str]], ...] = (
    ("Deepseek", _MLA_INPUTS),  # nvidia/DeepSeek-V3.1-NVFP4
    ("KimiK2", _ATTENTION | _SHARED),  # nvidia/Kimi-K2.5-NVFP4, nvidia/Kimi-K2.6-NVFP4
    ("KimiK25", _ATTENTION | _SHARED),
    ("MiniMax", _ATTENTION),  # nvidia/MiniMax-M2.5-NVFP4
    ("Qwen3_5", _ATTENTION | _SHARED),  # nvidia/Qwen3.5-397B-A17B-NVFP4
    ("Glm", _ATTENTION),  # nvidia/GLM-5-NVFP4
)


def as_run(model: ModelSpec, run: Run) -> ModelSpec:
    """`model` in the formats of `run`. Unknown format names keep the checkpoint's own."""
    kv = NumberFormat.FP8 if run.precision in _KV_FP8 else model.kv_format
    dense, experts = _FORMATS.get(run.gemm_quant), _FORMATS.get(run.moe_quant)
    asked = _CLASS.get(experts if experts is not None and model.experts else dense or _NONE)
    if asked is None or asked in _classes(model):
        return replace(model, kv_format=kv)
    if model.experts:
        dense, experts = _block(dense), _block(experts)
    kept = _kept(model) if asked == "fp4" else frozenset()

    def stored(op: Operator) -> Operator:
        wanted = experts if op.group is Group.EXPERTS else dense
        if wanted is None or op.name == ROUTER:
            return op
        if op.name in kept:
            return replace(op, format=NumberFormat.BF16)
        return replace(op, format=wanted)

    def kind_of(kind: LayerKind) -> LayerKind:
        return replace(kind, operators=tuple(stored(op) for op in kind.operators))

    layers = tuple((kind_of(kind), count) for kind, count in model.layers)
    return replace(model, layers=layers, kv_format=kv)


_NONE = NumberFormat.FP32  # of no class


def _block(fmt: NumberFormat | None) -> NumberFormat | None:
    return NumberFormat.FP8_BLOCK if fmt is NumberFormat.FP8 else fmt


def _classes(model: ModelSpec) -> set[str]:
    return {
        _CLASS[op.format]
        for kind, _ in model.layers
        for op in kind.operators
        if op.format in _CLASS
    }


def _kept(model: ModelSpec) -> frozenset[str]:
    for prefix, names in _SIXTEEN_BITS_IN_FP4:
        if model.architecture.startswith(prefix):
            return names
    return frozenset()
