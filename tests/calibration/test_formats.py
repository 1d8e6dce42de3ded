"""What a run's precision means for a model: what published checkpoints of that precision hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.calibration.formats import FORMAT_NAMES, as_run
from cluster.model.catalogue import get_model
from cluster.model.formats import NumberFormat
from cluster.model.operators import (
    ATTENTION_OUT,
    EXPERT_DOWN,
    EXPERT_UP,
    FFN_UP,
    KV_UP,
    LATENT_DOWN,
    Q_UP,
    QKV,
    ROUTER,
    SHARED_UP,
)
from tests.calibration.samples import run

FP8 = {"precision": "fp8", "gemm_quant": "fp8", "moe_quant": "fp8"}
FP4 = {"precision": "fp4", "gemm_quant": "nvfp4", "moe_quant": "nvfp4"}
AS_STORED = {"precision": "", "gemm_quant": "", "moe_quant": ""}
MODELS = {
    name: get_model(name)
    for name in (
        "meta-llama/Meta-Llama-3.1-8B",
        "openai/gpt-oss-120b",
        "Qwen/Qwen3-30B-A3B",
        "deepseek-ai/DeepSeek-V3",
        "moonshotai/Kimi-K2.5",
    )
}
LLAMA, GPT_OSS, QWEN, DEEPSEEK, KIMI = MODELS.values()


def formats(model) -> dict[str, set[NumberFormat]]:
    found: dict[str, set[NumberFormat]] = {}
    for kind, _ in model.layers:
        for op in kind.operators:
            found.setdefault(op.name, set()).add(op.format)
    return found


def test_a_dense_model_in_fp8_is_scaled_per_tensor():
    held = as_run(LLAMA, run(**FP8))
    assert formats(held) == {name: {NumberFormat.FP8} for name in formats(LLAMA)}
    assert held.kv_format is NumberFormat.FP8


def test_fp8_mixtures_are_block_scaled():
    held = formats(as_run(QWEN, run(**FP8)))
    assert held[EXPERT_UP] == held[QKV] == {NumberFormat.FP8_BLOCK}
    assert held[ROUTER] == {NumberFormat.BF16}


def test_deepseek_is_stored_in_fp8_blocks_already():
    assert formats(as_run(DEEPSEEK, run(**FP8))) == formats(DEEPSEEK)


def test_fp4_deepseek_keeps_the_inputs_of_its_attention_in_sixteen_bits():
    held = formats(as_run(DEEPSEEK, run(**FP4)))
    for name in (LATENT_DOWN, Q_UP, KV_UP, ROUTER):
        assert held[name] == {NumberFormat.BF16}, name
    for name in (EXPERT_UP, EXPERT_DOWN, SHARED_UP, ATTENTION_OUT, FFN_UP):
        assert held[name] == {NumberFormat.NVFP4}, name


def test_fp4_kimi_keeps_attention_and_shared_experts_in_sixteen_bits():
    held = formats(as_run(KIMI, run(**FP4)))
    for name in (LATENT_DOWN, Q_UP, KV_UP, ATTENTION_OUT, SHARED_UP):
        assert held[name] == {NumberFormat.BF16}, name
    assert held[EXPERT_UP] == {NumberFormat.NVFP4}
    assert held[FFN_UP] == {NumberFormat.NVFP4}


def test_a_dense_model_in_fp4_keeps_nothing_back():
    held = formats(as_run(LLAMA, run(**FP4)))
    assert held == {name: {NumberFormat.NVFP4} for name in formats(LLAMA)}


@pytest.mark.parametrize("asked", [FP4, {**FP4, "moe_quant": "mxfp4", "gemm_quant": "bf16"}])
def test_gpt_oss_is_served_in_its_own_mxfp4(asked):
    held = as_run(GPT_OSS, run(**asked))
    assert held.layers == GPT_OSS.layers
    assert formats(held)[EXPERT_UP] == {NumberFormat.MXFP4}
    assert held.kv_format is NumberFormat.FP8


def test_kimi_is_served_in_its_own_int4():
    held = as_run(KIMI, run(precision="int4", gemm_quant="int4_wo", moe_quant="int4_wo"))
    assert held == KIMI
    assert formats(held)[EXPERT_UP] == {NumberFormat.INT4}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_run_that_names_nothing_holds_the_checkpoint(model):
    assert as_run(model, run(**AS_STORED)) == model
    assert as_run(model, run(precision="", gemm_quant="q7", moe_quant="q7")) == model


NAMES = st.sampled_from(["", "unheard-of", *FORMAT_NAMES])


@given(
    model=st.sampled_from(list(MODELS.values())),
    precision=st.sampled_from(["", "bf16", "fp8", "fp4", "int4"]),
    dense=NAMES,
    experts=NAMES,
)
def test_shapes_and_routers_never_change_and_twice_is_once(model, precision, dense, experts):
    asked = run(precision=precision, gemm_quant=dense, moe_quant=experts)
    held = as_run(model, asked)
    assert held.params == model.params
    assert formats(held).get(ROUTER) == formats(model).get(ROUTER)
    assert as_run(held, asked) == held
    assert (held.embedding, held.head) == (model.embedding, model.head)
