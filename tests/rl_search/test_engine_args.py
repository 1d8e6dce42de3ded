from __future__ import annotations

from dataclasses import replace

from cluster.model.formats import NumberFormat
from cluster.model.layout import Layout
from rl_search.engine_args import engine_args
from tests.costmodel import specs


def test_a_gpu_gets_the_layout_and_its_share_of_memory():
    layout = Layout(tp=2, dp=4, pp=1, moe_tp=1, moe_ep=8, max_num_seqs=100)
    found = engine_args(layout, specs.moe(), specs.device(), max_model_len=4096, headroom=0.2)
    assert found["tensor_parallel_size"] == 2
    assert found["data_parallel_size"] == 4
    assert found["max_num_seqs"] == 25  # vLLM counts one data-parallel rank
    assert found["enable_expert_parallel"] is True
    assert found["gpu_memory_utilization"] == 0.8
    assert found["dtype"] == "bfloat16"
    assert "kv_cache_dtype" not in found


def test_a_cpu_computes_in_fp32_and_has_no_gpu_memory():
    found = engine_args(
        Layout(), specs.dense(), specs.device(kind="cpu"), max_model_len=512, headroom=0.2
    )
    assert found["dtype"] == "float32"
    assert "gpu_memory_utilization" not in found
    assert "enable_expert_parallel" not in found


def test_an_fp8_cache_is_asked_for():
    model = replace(specs.dense(), kv_format=NumberFormat.FP8)
    found = engine_args(Layout(), model, specs.device(), max_model_len=512, headroom=0.1)
    assert found["kv_cache_dtype"] == "fp8"
