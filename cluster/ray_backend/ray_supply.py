"""What does Ray's autoscaler say of placement groups that wait for a node?

The cluster's configuration in GCS, where groups of nodes and their maxima would stand
(`ray._private.state.get_cluster_config`), is written by no part of Ray 2.60. What the autoscaler
does write there after every look is which waiting placement groups no node would take that it has
or may add, and what it launches.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

from ray.core.generated.autoscaler_pb2 import (
    AutoscalingState,
    ClusterResourceState,
    GetClusterStatusReply,
)
from ray.experimental.internal_kv import internal_kv_get_gcs_client

from cluster.ray_backend.node_supply import NO_SUPPLY, NodeSupply

_ANSWER_S = 5.0

logger = logging.getLogger("shardwise.controller")


def node_supply() -> NodeSupply:
    """Of the cluster this process is connected to.

    Without an autoscaler (v2), and where nobody answers, no nodes are to come.
    """
    # As `ray.autoscaler.v2.sdk.get_cluster_status` asks, which leaves out what is refused.
    try:
        said = internal_kv_get_gcs_client().get_cluster_status(timeout_s=_ANSWER_S)
        reply = GetClusterStatusReply.FromString(said)
    except Exception as error:
        logger.warning("Ray does not say what its autoscaler does: %r", error)
        return NO_SUPPLY
    return read_supply(reply.autoscaling_state, reply.cluster_resource_state)


def read_supply(told: AutoscalingState, seen: ClusterResourceState) -> NodeSupply:
    """What the autoscaler has told, of nodes as GCS sees them.

    A monitor without an autoscaler tells as well; but only whoever launches nodes names them.
    """
    looked = told.last_seen_cluster_resource_state_version
    if not looked or not any(node.instance_id for node in seen.node_states):
        return NO_SUPPLY
    return NodeSupply(
        manages=True,
        looked=looked,
        # "ID:STRATEGY|STATE", as GCS writes it for the autoscaler.
        refused=frozenset(
            request.details.partition(":")[0] for request in told.infeasible_gang_resource_requests
        ),
        doing=", ".join(_doing(told)),
    )


def _doing(told: AutoscalingState) -> Iterator[str]:
    counts: Counter[str] = Counter()
    for request in told.pending_instance_requests:
        counts[request.ray_node_type_name] += request.count
    for instance in told.pending_instances:
        counts[instance.ray_node_type_name] += 1
    for name, count in sorted(counts.items()):
        yield f"{count} x {name} on the way"
    for failed in told.failed_instance_requests:
        yield f"{failed.count} x {failed.ray_node_type_name} failed: {failed.reason}"
