"""How is a service begun on a Ray cluster? The same way by `shardwise up` and by a RayService."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ray import serve

from cluster.model.plan import Plan
from cluster.ray_backend.auth import ray_token
from serving.app import Deployment, build, start_controller, start_weight_store
from serving.controller_life import ControllerLife
from serving.layout.node_requests import NodeRequests
from serving.layout.pool_app import PoolApps
from serving.settings.config import ServeConfig

APP = "shardwise"
NAMESPACE = "shardwise"


def deployment_of(
    plan: Plan,
    config: ServeConfig,
    *,
    sources: dict[str, str],
    dashboard_url: str,
    log_path: Path,
) -> Deployment:
    """What is deployed from this node of a Ray cluster."""
    return Deployment(
        plan=plan,
        config=config,
        sources=sources,
        app=APP,
        namespace=NAMESPACE,
        dashboard_url=dashboard_url,
        token=ray_token(),
        log_path=str(log_path.resolve()),
    )


def begin(deployment: Deployment) -> tuple[ControllerLife, serve.Application]:
    """Start the controller and this node's weight store. The second is to be run as `APP`."""
    start = partial(start_controller, deployment, PoolApps(deployment=deployment), NodeRequests())
    controller = ControllerLife(start)
    start_weight_store(deployment)
    return controller, build(deployment)
