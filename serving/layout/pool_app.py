"""A later generation of a pool as a Serve application: deployed, deleted, and where there is room.

Used by the controller actor from threads: what Ray answers here may take seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import ray
from ray import serve

from serving.app import Deployment, pool_deployment
from serving.layout.generations import Generation

# One failed start may be chance.
_STARTS = 2


@dataclass(frozen=True, kw_only=True)
class PoolApps:
    """`deployment`: with which the service was brought up."""

    deployment: Deployment

    def start(self, generation: Generation, *, replicas: int) -> None:
        """Deploy it; does not wait for a replica."""
        pool = next(p for p in generation.plan.pools if p.name == generation.pool)
        sources = self.deployment.sources | {pool.name: pool.model.source}
        deployment = replace(self.deployment, plan=generation.plan, sources=sources)
        engine, spec = pool_deployment(pool, deployment)
        engine = engine.options(
            num_replicas=replicas,
            user_config=generation.origin(),
            max_constructor_retry_count=_STARTS,
        )
        target = serve.RunTarget(
            target=engine.bind(replace(spec, generation=generation.number)),
            name=generation.name,
            route_prefix=None,
            external_scaler_enabled=True,
        )
        serve.run_many(
            [target],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )

    def delete(self, generation: Generation) -> None:
        """Delete it, and with it all its replicas; does not wait for their end."""
        serve.delete(generation.name, _blocking=False)

    def free(self) -> dict[str, float]:
        """Devices nobody holds, by node."""
        kind = "CPU" if self.deployment.plan.cluster.device_kind == "cpu" else "GPU"
        nodes = ray._private.state.available_resources_per_node()
        return {node: float(resources.get(kind, 0.0)) for node, resources in nodes.items()}
