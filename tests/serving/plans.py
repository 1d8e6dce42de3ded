"""Small plans: one model under layouts that differ in their ranks."""

from __future__ import annotations

from typing import Any

from cluster.model.plan import (
    ClusterSection,
    Expectation,
    LayoutSection,
    ModelSection,
    Plan,
    PoolSection,
    ReplicaBounds,
    SloSection,
    WorkloadSection,
)


def plan(
    *,
    tp: int = 1,
    initial: int = 1,
    maximum: int = 4,
    goodput_rps: float = 1.0,
    name: str = "model",
    **engine_args: Any,
) -> Plan:
    return Plan(
        cluster=ClusterSection(spec="1x8xcpu", device="cpu", nodes=1, devices_per_node=8),
        workload=WorkloadSection(isl=100, osl=100),
        slo=SloSection(),
        pools=(
            PoolSection(
                name="main",
                model=ModelSection(
                    name=name, source="/models/m", params=1, weight_bytes=1.0, max_context=4096
                ),
                layout=LayoutSection(tp=tp, moe_tp=tp),
                replicas=ReplicaBounds(minimum=1, initial=initial, maximum=maximum),
                engine_args={"max_model_len": 1024, **engine_args},
                expected=Expectation(
                    ttft_s=0.1,
                    tpot_s=0.01,
                    concurrency=8,
                    tokens_per_s_per_device=100.0,
                    tokens_per_s_per_user=100.0,
                    goodput_rps=goodput_rps,
                    prefill_tokens_per_s=1000.0,
                    decode_tokens_per_s=100.0,
                    kv_capacity_tokens=10_000,
                    memory_bytes={},
                    parts_s={},
                    provenance="test",
                ),
            ),
        ),
    )
