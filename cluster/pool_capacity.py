"""What does one replica of a plan's pool hold and deliver, in predicted tokens?

Predicted tokens ((prompt + output / 2) * 1.2) are what routing and steering count in; the plan
knows requests of its workload. The live system and the simulator size replicas alike.
"""

from __future__ import annotations

from cluster.model.plan import Plan, PoolSection
from cluster.pool_ledger import ReplicaLimits
from cluster.routing import predicted_tokens


def request_tokens(plan: Plan) -> float:
    """Predicted tokens of a request of the plan's workload."""
    return predicted_tokens(prompt_tokens=plan.workload.isl, output_tokens=plan.workload.osl)


def in_flight_tokens(pool: PoolSection, *, plan: Plan) -> float:
    """Predicted tokens one replica of a pool holds at once: its batch, or its KV cache."""
    batch = pool.layout.max_num_seqs * request_tokens(plan)
    if pool.expected is None:
        return batch
    return max(1.0, min(batch, float(pool.expected.kv_capacity_tokens)))


def replica_limits(pool: PoolSection, *, plan: Plan) -> ReplicaLimits:
    """What a gateway gives one replica of a pool at most."""
    return ReplicaLimits(
        max_requests=pool.layout.max_num_seqs, max_tokens=in_flight_tokens(pool, plan=plan)
    )
