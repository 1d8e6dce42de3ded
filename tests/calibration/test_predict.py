"""All runs in one pass of the formulas: the same answers as one by one, in the order given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.calibration.predict import (
    SYSTEMS,
    evaluate_runs,
    group_of,
    lower,
    predict,
    rows_of,
    with_builds,
)
from cluster.errors import InputError, UnknownNameError
from tests.calibration.samples import run
from tests.calibration.synthetic import BASE, FIND, LLAMA

DEEPSEEK = "deepseek-ai--DeepSeek-V3"
DENSE = run(id="dense", config=LLAMA, precision="", gemm_quant="", moe_quant="")
MIXED = [
    DENSE,
    run(id="gpt-oss", precision="fp4", moe_quant="mxfp4", gemm_quant="bf16"),
    replace(DENSE, id="b200", system="b200_sxm", backend="trtllm", concurrency=3),
    run(
        id="deepseek",
        config=DEEPSEEK,
        system="h200_sxm",
        backend="sglang",
        tp=8,
        moe_tp=8,
        gemm_quant="fp8_block",
        moe_quant="fp8_block",
    ),
    replace(DENSE, id="busy", concurrency=200, tp=1, moe_tp=1),
    run(
        id="ranks",
        config=DEEPSEEK,
        system="b200_sxm",
        precision="fp4",
        gemm_quant="nvfp4",
        moe_quant="nvfp4",
        tp=1,
        attention_dp=8,
        moe_tp=1,
        moe_ep=8,
        concurrency=256,
    ),
    replace(DENSE, id="staged", pp=2, concurrency=32),
    run(id="gpt-oss tp1", tp=1, moe_tp=1),
]


def both(runs, **options):
    return np.stack(predict(runs, FIND, coefficients=BASE, **options))


ALONE = np.concatenate([both([each]) for each in MIXED], axis=1)


@settings(max_examples=12)
@given(order=st.permutations(range(len(MIXED))))
def test_together_is_one_by_one_whatever_the_order(order):
    together = both([MIXED[row] for row in order])
    np.testing.assert_allclose(together, ALONE[:, order], rtol=1e-9)


def test_times_are_positive_and_differ():
    assert np.isfinite(ALONE).all()
    assert (ALONE > 0.0).all()
    assert len(set(ALONE[1].round(9))) == len(MIXED)


def test_a_busier_server_is_slower():
    drawn = replace(DENSE, isl=1024, osl=1024)
    ttft, tpot = both([replace(drawn, concurrency=c) for c in (1, 8, 64, 256)])
    assert (np.diff(tpot) > 0.0).all()
    assert (np.diff(ttft) > 0.0).all()


def test_degrees_counted_twice_are_read_as_what_ran():
    plain = replace(MIXED[5])
    doubled = replace(plain, attention_dp=64, moe_tp=8, moe_ep=8)
    np.testing.assert_allclose(both([doubled]), both([plain]))
    assert not np.allclose(both([doubled], as_written=True), both([plain]))


def test_lengths_of_the_drawn_shapes_are_a_tenth_shorter():
    nominal = replace(DENSE, isl=1024, osl=1024)
    near = replace(DENSE, isl=1024, osl=1025)  # sent as it is
    assert both([nominal])[1] < both([near])[1]


def test_builds_with_a_prediction_head_need_less_time_per_token():
    plain = replace(MIXED[3], backend="trtllm", backend_version="1.0.0", concurrency=4)
    head = replace(plain, backend_version="1.1.0rc2.post2")
    # 2.3 tokens a step, but four times as many read more experts.
    assert 1.0 / 2.3 < float(both([head])[1, 0] / both([plain])[1, 0]) < 0.85
    dense = replace(DENSE, backend="trtllm", backend_version="1.1.0rc2.post2")
    np.testing.assert_allclose(both([dense]), both([replace(dense, backend_version="1.0.0")]))


@pytest.mark.parametrize(
    "name",
    [
        "gemm.hopper.bf16.mbu",
        "experts.blackwell.nvfp4.mbu",
        "latent.hopper.decode_mbu",
        "link.blackwell.efficiency",
        "engine.sglang.step_s",
        "experts.skew",
    ],
)
def test_a_coefficient_touches_only_the_rows_said(name):
    lowered = lower(MIXED, FIND, coefficients=BASE)
    position = BASE.position(name)
    values = BASE.values.copy()
    values[position] *= 0.7
    before = evaluate_runs(lowered, BASE)
    after = evaluate_runs(lowered, BASE.with_values(values))
    changed = ~np.isclose(before.tpot_s, after.tpot_s, rtol=1e-12) | ~np.isclose(
        before.ttft_s, after.ttft_s, rtol=1e-12
    )
    assert changed.any()
    assert set(np.flatnonzero(changed)) <= set(rows_of(lowered, position).tolist())


def test_some_rows_are_the_same_as_in_the_whole():
    lowered = lower(MIXED, FIND, coefficients=BASE)
    rows = np.array([5, 0, 3])
    part = evaluate_runs(lowered.take(rows), BASE)
    np.testing.assert_allclose(part.tpot_s, ALONE[1, rows], rtol=1e-9)


def test_every_engine_version_gets_its_own_factors():
    more = with_builds(BASE, [run(backend_version="7"), run(backend="sglang", backend_version="")])
    assert {name for name in more.names if name not in BASE} >= {
        "build.vllm.7.time",
        "build.sglang.unknown.prefill",
    }
    assert more.value("build.vllm.7.time") == 1.0
    assert with_builds(more, [run(backend_version="7")]) is more
    np.testing.assert_allclose(
        np.stack(predict(MIXED, FIND, coefficients=with_builds(BASE, MIXED))), ALONE
    )


def test_systems_are_known_by_name_or_by_device():
    assert group_of("gb200").devices_per_node == 4
    assert group_of("h100_sxm") == group_of("h100")
    for name in SYSTEMS:
        assert group_of(name).device.kind == "gpu"
    with pytest.raises(UnknownNameError, match="unknown system 'tpu_v5'") as caught:
        group_of("tpu_v5")
    assert "h100_sxm" in str(caught.value)


def test_what_cannot_be_predicted_is_refused():
    with pytest.raises(InputError, match="no runs"):
        both([])
    with pytest.raises(UnknownNameError, match="unknown system 'nowhere'"):
        both([replace(DENSE, system="nowhere")])
    with pytest.raises(InputError, match="config 'nobody--nothing'"):
        both([replace(DENSE, config="nobody--nothing")])
    with pytest.raises(UnknownNameError, match="unknown backend 'triton'"):
        both([replace(DENSE, backend="triton")])
