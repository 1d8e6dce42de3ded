from prometheus_client import CollectorRegistry

from serving.messages import NodesSeen
from serving.node_metrics import NodeMetrics


def test_replicas_that_are_gone_leave_no_series_behind() -> None:
    registry = CollectorRegistry()
    metrics = NodeMetrics(registry)
    metrics.set(NodesSeen(memory={"a": ("main", 1.0, 2.0)}, retired={"main": 1}))
    metrics.set(NodesSeen(memory={"b": ("main", 3.0, 4.0)}, retired={"main": 2}, swept_processes=5))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"shardwise_{name}", labels)

    assert value("replica_host_bytes", pool="main", replica="a") is None
    assert value("replica_host_bytes", pool="main", replica="b") == 3.0
    assert value("replica_device_bytes", pool="main", replica="b") == 4.0
    assert value("retired_replicas", pool="main") == 2
    assert value("swept", what="processes") == 5
