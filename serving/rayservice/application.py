"""The application that a Serve configuration names: one small replica that reconciles.

    import_path: serving.rayservice.application:application
    args: {plan: …, config: …}

Serve restarts every replica of an application whose arguments change, so what serves is not in this
one: the replica brings it up beside it, and hands a changed plan to the controller
(docs/decisions/0020). It has done its work when it has started, so Serve says RUNNING when what is
wanted is served, and DEPLOY_FAILED with the reason if that cannot be.
"""

from __future__ import annotations

from typing import Any

from ray import serve

from serving.engine.replica import EngineReplica
from serving.keeper.vacant import HEAD
from serving.rayservice.on_ray import RayClusterService
from serving.rayservice.reconcile import reconcile
from serving.rayservice.wanted import read_wanted

_ATTEMPTS = 2


class Reconciler:
    """Serve deployment class."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, arguments: dict[str, Any], engine: type[EngineReplica]
    ) -> None:
        await reconcile(read_wanted(arguments), RayClusterService(engine))


def application(args: dict[str, Any]) -> serve.Application:
    """The builder. Raises ConfigError or InputError for arguments that cannot be served."""
    return reconciler(args, engine=EngineReplica)


def reconciler(args: dict[str, Any], *, engine: type[EngineReplica]) -> serve.Application:
    """The application. `engine`: what engine replicas are."""
    read_wanted(args)  # now: whoever deployed this is told at once
    deployment = serve.deployment(
        Reconciler,
        name="reconciler",
        num_replicas=1,
        max_constructor_retry_count=_ATTEMPTS,
        graceful_shutdown_timeout_s=1,
        # On the head: no node that comes and goes with the load is kept by it.
        ray_actor_options={"num_cpus": 0, "resources": {HEAD: 0.001}},
    )
    return deployment.bind(args, engine)
