"""What do a gateway's metrics say of the nodes? The controller's account, as gauges.

Every gateway says the same: take the maximum over gateways, not the sum.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from serving.messages import NodesSeen


class NodeMetrics:
    """Series about replicas' memory, sweeps and retirements."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._host = Gauge(
            "shardwise_replica_host_bytes",
            "Host memory of all processes of a replica",
            ["pool", "replica"],
            registry=registry,
        )
        self._device = Gauge(
            "shardwise_replica_device_bytes",
            "Device memory of all processes of a replica",
            ["pool", "replica"],
            registry=registry,
        )
        self._retired = Gauge(
            "shardwise_retired_replicas",
            "Replicas drained and restarted for their memory since the controller began",
            ["pool"],
            registry=registry,
        )
        self._swept = Gauge(
            "shardwise_swept",
            "Left of replicas and removed since the controller began: processes, placement_groups",
            ["what"],
            registry=registry,
        )

    def set(self, seen: NodesSeen) -> None:
        """Take over an account; replicas that are gone leave no series behind."""
        self._host.clear()
        self._device.clear()
        for replica_id, (pool, host, device) in seen.memory.items():
            self._host.labels(pool, replica_id).set(host)
            self._device.labels(pool, replica_id).set(device)
        for pool, count in seen.retired.items():
            self._retired.labels(pool).set(count)
        self._swept.labels("processes").set(seen.swept_processes)
        self._swept.labels("placement_groups").set(seen.swept_placement_groups)
