from __future__ import annotations

import pytest

from cluster.errors import ConfigError
from cluster.model.catalogue import get_model
from cluster.model.config_fields import Fields
from cluster.model.formats import NumberFormat as F
from cluster.model.quantization import matches, read_quantization
from cluster.model.requantize import with_formats

Q_PROJ = "model.layers.7.self_attn.q_proj"
EXPERT = "model.layers.7.mlp.experts.0.gate_proj"


def read(config):
    return read_quantization(Fields({"quantization_config": config}, "x"), base=F.BF16)


def compressed(weights, **more):
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "config_groups": {"g": group}, **more}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quant_method": "fp8"}, F.FP8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, F.FP8_BLOCK),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, F.INT4),
        ({"quant_method": "gptq", "bits": 8}, F.INT8),
        ({"quant_method": "awq", "bits": 4}, F.INT4),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, F.INT4),
        ({"quant_method": "mxfp4"}, F.MXFP4),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, F.NVFP4),
        ({"quant_algo": "FP8"}, F.FP8),
        (compressed({"num_bits": 8, "type": "int"}), F.INT8),
        (compressed({"num_bits": 8, "type": "float", "strategy": "channel"}), F.FP8),
        (compressed({"num_bits": 8, "type": "float", "strategy": "block"}), F.FP8_BLOCK),
        (compressed({"num_bits": 4, "type": "int", "group_size": 128}), F.INT4),
        (compressed({"num_bits": 4, "type": "float", "group_size": 16}), F.NVFP4),
        (compressed({"num_bits": 4, "type": "float", "group_size": 32}), F.MXFP4),
    ],
)
def test_methods(config, expected):
    quantization = read(config)
    assert quantization.format_of(Q_PROJ) is expected
    assert quantization.head_format is F.BF16


def test_no_section_means_the_base_format():
    assert read_quantization(Fields({}, "x"), base=F.FP32).format_of(Q_PROJ) is F.FP32


@pytest.mark.parametrize(
    ("pattern", "module", "expected"),
    [
        ("gate", "model.layers.1.mlp.gate", True),
        ("gate", "model.layers.1.mlp.gate_proj", False),
        ("lm_head", "lm_head", True),
        ("model.layers.*.self_attn", Q_PROJ, True),
        ("model.layers.*.self_attn", EXPERT, False),
        ("model.layers.7.self_attn*", Q_PROJ, True),
        ("model.layers.1.self_attn", Q_PROJ, False),
        ("language_model.model.layers.7.self_attn.q_proj", Q_PROJ, True),
        ("re:.*self_attn.*", Q_PROJ, True),
        (r"re:.*mlp\.(gate|up)_proj.*", EXPERT, False),
        (r"re:.*mlp\.(gate|up)_proj.*", "model.layers.0.mlp.gate_proj", True),
    ],
)
def test_patterns(pattern, module, expected):
    assert matches(pattern, module) is expected


def test_excluded_modules_stay_in_the_base_format():
    quantization = read({"quant_method": "fp8", "modules_to_not_convert": ["self_attn"]})
    assert quantization.format_of(Q_PROJ) is F.BF16
    assert quantization.format_of(EXPERT) is F.FP8


def test_gptq_may_quantise_the_head():
    assert read({"quant_method": "gptq", "bits": 4, "lm_head": True}).head_format is F.INT4


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
        compressed({"num_bits": 8, "type": "float"}, kv_cache_scheme={"num_bits": 8}),
    ],
)
def test_fp8_cache(config):
    assert read(config).kv_format is F.FP8


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"quant_method": "hqq"}, "known: awq"),
        ({}, "quant_method.* is missing"),
        ({"quant_method": "gptq"}, "bits.* is missing"),
        ({"quant_method": "gptq", "bits": 3}, "4 and 8"),
        ({"quant_method": "modelopt", "quant_algo": "W2"}, "W2"),
        ({"quant_method": "compressed-tensors"}, "config_groups"),
        (compressed({"num_bits": 2, "type": "int"}), "num_bits"),
        (compressed({"num_bits": 8, "type": "int"}, ignore=["re:("]), "regular expression"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "list of strings"),
    ],
)
def test_errors_name_the_field(config, said):
    with pytest.raises(ConfigError, match=said):
        read(config)


def test_with_formats_changes_blocks_and_cache_only():
    model = get_model("mixtral-8x7b")
    changed = with_formats(model, weights=F.FP8, kv=F.FP8)
    assert changed.params == model.params
    assert changed.kv_bytes(100) == model.kv_bytes(100) / 2
    formats = {op.name: op.format for kind, _ in changed.layers for op in kind.operators}
    assert formats.pop("router") is F.BF16
    assert set(formats.values()) == {F.FP8}
    assert (changed.embedding, changed.head) == (model.embedding, model.head)
