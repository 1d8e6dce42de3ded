"""What do we rely on of vLLM's own metrics? Read inside each replica, never scraped from it.

What of them is told on is in the controller's account (`shardwise_replica_…`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from serving.telemetry.metric import Kind, Label, Metric

ENGINE = Label(name="engine", bound="engines of the process: one")
MODEL = Label(name="model_name", bound="the pool's model")

# What is read, by its name in a replica's report.
READ: Mapping[str, str] = MappingProxyType(
    {
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "kv_usage": "vllm:kv_cache_usage_perc",
        "prompt_tokens": "vllm:prompt_tokens_total",
        "output_tokens": "vllm:generation_tokens_total",
    }
)


def _read(name: str, says: str, *, unit: str, kind: Kind = "gauge") -> Metric:
    return Metric(
        name=READ[name],
        kind=kind,
        unit=unit,
        source="engine",
        says=says,
        labels=(MODEL, ENGINE),
    )


ENGINE_METRICS = (
    _read("running", "`shardwise_replica_running`; saturation", unit="sequences"),
    _read("waiting", "`shardwise_replica_waiting`; second scheduling", unit="sequences"),
    _read("kv_usage", "`shardwise_replica_kv_usage_ratio`; saturation", unit="fraction"),
    _read(
        "prompt_tokens",
        "`shardwise_replica_prompt_tokens_total`; measured speed",
        unit="tokens",
        kind="counter",
    ),
    _read(
        "output_tokens",
        "`shardwise_replica_output_tokens_total`; measured speed",
        unit="tokens",
        kind="counter",
    ),
)
