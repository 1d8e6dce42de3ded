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

from cluster.ray_backend.rendezvous import meeting_at


class CpuRayWorker(ray_executor_v2.RayWorkerProc):  # type: ignore[misc]  # vLLM's is untyped here
    """A rank that holds no device, and whose process group listens on its node's address only."""

    def get_node_and_physical_gpu_ids(self) -> tuple[str, list[int]]:
        """The node, and no devices."""
        node_id: str = ray.get_runtime_context().get_node_id()
        return node_id, []

    def create_dist_init_method(self) -> str:
        """Where the ranks meet; vLLM's own way would listen on every interface."""
        meeting, self._dist_init_store = meeting_at(
            ray.util.get_node_ip_address(), world=self._parallel_config.world_size
        )
        return meeting


class CpuRayExecutor(ray_executor_v2.RayExecutorV2):  # type: ignore[misc]
    """vLLM's Ray executor over bundles that hold `{"CPU": 1}`."""

    def _init_executor(self) -> None:
        current_platform.ray_device_key = "CPU"
        ray_executor_v2.RayWorkerProc = CpuRayWorker
        super()._init_executor()

    @staticmethod
    def _get_actor_resource_kwargs() -> dict[str, Any]:
        return {}  # the bundle is the worker's alone; it asks for nothing on top
