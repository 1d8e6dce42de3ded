"""What the autoscaler has told, in Ray's own messages."""

from __future__ import annotations

import pytest

pytest.importorskip("ray", reason="needs the serve extra")

from ray.core.generated.autoscaler_pb2 import (
    AutoscalingState,
    ClusterResourceState,
    FailedInstanceRequest,
    GangResourceRequest,
    NodeState,
    PendingInstance,
    PendingInstanceRequest,
)

from cluster.ray_backend.node_supply import NO_SUPPLY, NodeSupply, Refusals
from cluster.ray_backend.ray_supply import read_supply

LAUNCHED = ClusterResourceState(node_states=[NodeState(), NodeState(instance_id="pod-1")])


def test_what_is_refused_and_what_comes_is_read() -> None:
    told = AutoscalingState(
        last_seen_cluster_resource_state_version=7,
        infeasible_gang_resource_requests=[GangResourceRequest(details="ab12:STRICT_PACK|PENDING")],
        pending_instance_requests=[PendingInstanceRequest(ray_node_type_name="main", count=2)],
        pending_instances=[PendingInstance(ray_node_type_name="main")],
        failed_instance_requests=[
            FailedInstanceRequest(ray_node_type_name="light", count=1, reason="no capacity")
        ],
    )
    assert read_supply(told, LAUNCHED) == NodeSupply(
        manages=True,
        looked=7,
        refused=frozenset({"ab12"}),
        doing="3 x main on the way, 1 x light failed: no capacity",
    )


def test_a_monitor_that_launches_nothing_is_no_autoscaler() -> None:
    told = AutoscalingState(last_seen_cluster_resource_state_version=7)
    assert read_supply(told, ClusterResourceState(node_states=[NodeState()])) == NO_SUPPLY


def test_an_autoscaler_that_has_told_nothing_is_none() -> None:
    assert read_supply(AutoscalingState(), LAUNCHED) == NO_SUPPLY


def supply(looked: int, *refused: str) -> NodeSupply:
    return NodeSupply(manages=True, looked=looked, refused=frozenset(refused))


def test_what_is_refused_at_two_looks_in_a_row_is_refused() -> None:
    refusals = Refusals()
    told = [supply(1, "a"), supply(1, "a"), supply(2, "a", "b"), supply(3, "b"), supply(4)]
    assert [set(refusals.of(each)) for each in told] == [set(), set(), {"a"}, {"b"}, set()]
