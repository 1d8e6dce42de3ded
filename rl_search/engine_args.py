"""How is a layout said to vLLM? Its engine arguments, by the names `vllm serve` has for them.

`max_num_seqs` of a layout counts a whole replica, vLLM's counts one data-parallel rank.
Quantisation is left to the checkpoint, which says it itself.

On CPU cores an engine runs eagerly: it starts without waiting for a compiler, and a lost replica is
back sooner. With pipeline stages it compiles all the same, as vLLM's CPU build fails an
assertion in an eager second stage. Its KV cache is asked for in bytes (`rl_search.kv_cache`).
"""

from __future__ import annotations

import math

from cluster.model.formats import NumberFormat
from cluster.model.hardware import Device
from cluster.model.layout import Layout
from cluster.model.model_spec import ModelSpec

EngineArgs = dict[str, int | float | str | bool]

_DTYPES = {
    NumberFormat.FP32: "float32",
    NumberFormat.BF16: "bfloat16",
    NumberFormat.FP16: "float16",
}


def engine_args(
    layout: Layout,
    model: ModelSpec,
    device: Device,
    *,
    max_model_len: int,
    headroom: float,
    kv_cache_bytes: int | None = None,
) -> EngineArgs:
    """Engine arguments of one replica; parallel degrees of 1 are written too, to be seen.

    `kv_cache_bytes` per rank; None leaves the size of the cache to the engine.
    """
    args: EngineArgs = {
        "tensor_parallel_size": layout.tp,
        "pipeline_parallel_size": layout.pp,
        "data_parallel_size": layout.dp,
        "max_num_seqs": max(1, math.ceil(layout.max_num_seqs / layout.dp)),
        "max_num_batched_tokens": layout.max_num_batched_tokens,
        "max_model_len": max_model_len,
        "enable_chunked_prefill": True,
    }
    if model.experts:
        args["enable_expert_parallel"] = layout.moe_ep > 1
    if device.kind == "cpu":
        args["dtype"] = "float32"
        if layout.pp == 1:
            args["enforce_eager"] = True
    else:
        args["dtype"] = _DTYPES.get(model.embedding.format, "auto")
        args["gpu_memory_utilization"] = round(1.0 - headroom, 3)
    if kv_cache_bytes is not None:
        args["kv_cache_memory_bytes"] = kv_cache_bytes
    if model.kv_format in (NumberFormat.FP8, NumberFormat.FP8_BLOCK):
        args["kv_cache_dtype"] = "fp8"
    return args
