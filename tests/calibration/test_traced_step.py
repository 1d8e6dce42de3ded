"""The step that was profiled, as the cost model sees it."""

from __future__ import annotations

import pytest

from cluster.calibration.nsys_updates import coefficient_updates
from cluster.calibration.predict import group_of
from cluster.calibration.traced_step import TracedStep, expect
from cluster.costmodel.steps import PART_NAMES
from cluster.errors import InputError, UnknownNameError
from cluster.model.catalogue import get_model
from cluster.model.layout import Layout
from tests.calibration.synthetic import BASE

LLAMA = get_model("meta-llama/Meta-Llama-3.1-8B")
DEEPSEEK = get_model("deepseek-ai/DeepSeek-V3")
H100 = group_of("h100")


def step(*, phase="decode", batch=32, context=1000, backend="vllm", **degrees):
    tp, dp = degrees.get("tp", 1), degrees.get("dp", 1)
    layout = Layout(**{"moe_tp": tp, "moe_ep": dp, **degrees})
    return TracedStep(phase=phase, batch=batch, context=context, layout=layout, backend=backend)


def parts(model, group=H100, **of):
    return expect(model, group, step(**of), coefficients=BASE).parts


def test_a_decode_step_reads_the_weights_once():
    found = parts(LLAMA)
    assert set(found) == set(PART_NAMES)
    weights = sum(found[name] for name in ("projections", "ffn", "head"))
    least = 2.0 * 7.5e9 / H100.device.memory_bandwidth  # all but the embedding, in 16 bits
    assert least < weights < 1.6 * least
    assert found["experts"] == found["all_reduce"] == found["all_to_all"] == 0.0


def test_more_sequences_and_longer_ones_take_longer():
    one, many = parts(LLAMA, batch=1), parts(LLAMA, batch=256)
    longer = parts(LLAMA, batch=256, context=8000)
    assert one["attention"] < many["attention"] < longer["attention"]
    assert one["ffn"] < many["ffn"] == longer["ffn"]


def test_prompts_are_bound_by_arithmetic():
    found = parts(LLAMA, phase="prefill", batch=2, context=4000)
    flops = 2.0 * 8000 * 32 * 3 * 4096 * 14336
    peak = H100.device.flops[LLAMA.embedding.format]
    assert found["ffn"] > flops / peak
    assert found["ffn"] > 5.0 * parts(LLAMA)["ffn"]


def test_a_device_of_a_pipeline_does_its_share():
    whole, staged = parts(LLAMA), parts(LLAMA, pp=2)
    assert staged["ffn"] == pytest.approx(whole["ffn"] / 2)
    assert staged["send_recv"] > 0.0


def test_ranks_share_the_sequences_and_route_together():
    group = group_of("h200")
    one = parts(DEEPSEEK, group, batch=64, tp=8, moe_tp=1, moe_ep=8)
    ranks = parts(DEEPSEEK, group, batch=512, tp=1, dp=8)
    same = parts(DEEPSEEK, group, batch=64 * 8, tp=8, moe_tp=1, moe_ep=8)
    assert ranks["attention"] < same["attention"]  # latent attention is not divided by tp
    assert ranks["experts"] == pytest.approx(same["experts"], rel=0.01)
    assert ranks["experts"] > one["experts"]
    assert ranks["all_to_all"] > 0.0 == one["all_to_all"]


@pytest.mark.parametrize(
    ("model", "device", "kept"),
    [
        (LLAMA, "h100", ("hopper", "bf16", "", "attention")),
        (DEEPSEEK, "h200", ("hopper", "fp8_block", "fp8_block", "latent")),
        (DEEPSEEK, "b200", ("blackwell", "fp8_block", "fp8_block", "latent")),
        (DEEPSEEK, "a100", ("ampere", "bf16", "bf16", "attention")),  # no curves of its own
        (get_model("openai/gpt-oss-20b"), "h100", ("hopper", "bf16", "mxfp4", "attention")),
    ],
)
def test_the_coefficients_named_are_those_the_step_rests_on(model, device, kept):
    for phase in ("decode", "prefill"):
        found = expect(
            model, group_of(device), step(phase=phase, tp=8, moe_tp=8), coefficients=BASE
        )
        trace = found.trace
        assert (trace.family, trace.gemm, trace.experts, trace.attention) == kept
        current = dict(zip(BASE.names, BASE.values.tolist(), strict=True))
        ratios = {"gemm": 1.25, "attention": 1.25}
        updates = coefficient_updates(
            ratios, predicted=found.parts, current=current, trace=trace
        ).values
        assert len(updates) == 2
        slower = expect(
            model,
            group_of(device),
            step(phase=phase, tp=8, moe_tp=8),
            coefficients=BASE.updated(updates, source="trace"),
        )
        for part in ("projections", "attention"):
            assert slower.parts[part] > found.parts[part] * 1.01


def test_a_model_of_two_formats_says_which_one_is_corrected():
    kimi = get_model("moonshotai/Kimi-K2.5")
    assert expect(LLAMA, H100, step(), coefficients=BASE).notes == ()
    mixed = get_model("Qwen/Qwen3.5-397B-A17B")
    (note,) = expect(mixed, group_of("b200"), step(tp=8, moe_tp=8), coefficients=BASE).notes
    assert note.startswith("kinds of attention are linear, attention")
    held = expect(kimi, group_of("b200"), step(tp=8, moe_tp=8), coefficients=BASE)
    assert held.trace.experts == "int4"


def test_what_cannot_have_been_profiled_is_refused():
    with pytest.raises(InputError, match=r"tp x dp = 8, but moe_tp x moe_ep = 4"):
        parts(DEEPSEEK, tp=8, moe_tp=4)
    with pytest.raises(InputError, match="0 sequences of 1000 tokens"):
        parts(LLAMA, batch=0)
    with pytest.raises(UnknownNameError, match="unknown backend 'tgi'"):
        parts(LLAMA, backend="tgi")
