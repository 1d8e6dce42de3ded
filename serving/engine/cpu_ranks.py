"""How do the ranks of a CPU replica become Ray workers, one per bundle of its placement group?

vLLM's Ray executor knows accelerators only: it asks Ray which device a worker was given. A CPU
rank has none; everything else (message queues, rank order, liveness watch) is the executor's own.
Imported in the engine-core process and in the workers, never by the gateway.
"""

from __future__ import annotations

from typing import Any

import ray
from vllm.platforms import current_platform
from vllm.v1.executor import ray_executor_v2


class CpuRayWorker(ray_executor_v2.RayWorkerProc):  # type: ignore[misc]  # vLLM's is untyped here
    """A rank that holds no device."""

    def get_node_and_physical_gpu_ids(self) -> tuple[str, list[int]]:
        """The node, and no devices."""
        node_id: str = ray.get_runtime_context().get_node_id()
        return node_id, []


class CpuRayExecutor(ray_executor_v2.RayExecutorV2):  # type: ignore[misc]
    """vLLM's Ray executor over bundles that hold `{"CPU": 1}`."""

    def _init_executor(self) -> None:
        current_platform.ray_device_key = "CPU"
        ray_executor_v2.RayWorkerProc = CpuRayWorker
        super()._init_executor()

    @staticmethod
    def _get_actor_resource_kwargs() -> dict[str, Any]:
        return {}  # the bundle is the worker's alone; it asks for nothing on top
