"""The service on the Ray cluster this process is part of, as `reconcile` sees it."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, replace
from typing import Any

import httpx
import ray
from ray import serve
from ray._private.services import get_webui_url_from_internal_kv

from cluster.errors import UnavailableError
from cluster.model.plan import Plan
from cluster.ray_backend.auth import ray_token
from serving.app import CONTROLLER
from serving.control.scaler import ServeScaler
from serving.controller_life import ControllerLife
from serving.deploy import APP, NAMESPACE, begin, deployment_of
from serving.diagnosis import failure
from serving.engine.replica import EngineReplica
from serving.instance import Instance
from serving.rayservice.reconcile import Running
from serving.rayservice.wanted import Wanted

_ANSWER_S = 30.0
_PATIENCE_S = 300.0  # for a controller that is started anew
_NEVER_SERVED = "DEPLOY_FAILED"
# A name of the head that outlives its pod, as a URL.
DASHBOARD_VARIABLE = "SHARDWISE_DASHBOARD"


@dataclass(frozen=True)
class RayClusterService:
    """`engine`: what engine replicas are."""

    engine: type[EngineReplica]

    async def running(self) -> Running | None:
        """What was brought up and is there with its controller."""
        status = await asyncio.to_thread(_application_status)
        if status is None or status == "DELETING":
            return None
        if status == _NEVER_SERVED:
            return Running(config="", failed=True)
        return Running(config=await _ask("configuration"))

    async def bring_up(self, wanted: Wanted) -> None:
        """Deploy it, and wait for the controller.

        Not for replicas: nodes may come later, by Ray's autoscaler. Raises UnavailableError.
        """
        controller = await asyncio.to_thread(self._deploy, wanted)
        until_s = time.monotonic() + _PATIENCE_S
        while not await asyncio.to_thread(controller.check):
            if time.monotonic() > until_s:
                raise UnavailableError(f"the controller has not started in {_PATIENCE_S:.0f} s")
            await asyncio.sleep(0.5)

    def _deploy(self, wanted: Wanted) -> ControllerLife:
        _kill_controller()  # one that lost its application
        deployment = deployment_of(
            wanted.plan,
            wanted.config,
            sources=wanted.sources,
            dashboard_url=_dashboard_url(),
            log_path=Instance.default().decisions_path,
        )
        controller, application = begin(replace(deployment, engine=self.engine))
        target = serve.RunTarget(
            target=application,
            name=APP,
            route_prefix=None,
            external_scaler_enabled=True,
        )
        serve.run_many(
            [target],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
        return controller

    async def take_down(self) -> None:
        """Delete the application and end the controller."""
        await asyncio.to_thread(_kill_controller)
        await asyncio.to_thread(serve.delete, APP)

    async def layout(self) -> dict[str, Any]:
        """See `serving.layout.layout_steering.LayoutSteering.layout`."""
        layout: dict[str, Any] = await _ask("layout", 0)
        return layout

    async def move_to(self, plan: Plan, *, below_floor: bool) -> dict[str, Any]:
        """See `LayoutSteering.begin`."""
        said: dict[str, Any] = await _ask("begin_move", plan.dumps(), below_floor=below_floor)
        return said

    async def ready(self, gateways: int) -> bool:
        """Whether so many gateways say so."""
        listed = (await _ask("status"))["gateways"]
        said = await asyncio.gather(*(_is_ready(gateway["address"]) for gateway in listed))
        return sum(said) >= gateways

    async def failure(self) -> str:
        """Why the application does not start; empty while it may."""
        status = await asyncio.to_thread(_application_status)
        if status != _NEVER_SERVED:
            return ""
        scaler = ServeScaler(dashboard_url=_dashboard_url(), app=APP, token=ray_token())
        try:
            return failure(await scaler.states(), logs=None) or "Serve does not say why"
        except UnavailableError as error:
            return str(error)


async def _is_ready(address: str) -> bool:
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=2.0) as client:
            return (await client.get(f"http://{address}/ready")).is_success
    except httpx.HTTPError:
        return False


def _application_status() -> str | None:
    application = serve.status().applications.get(APP)
    return None if application is None else str(application.status.value)


def _dashboard_url() -> str:
    """Of this cluster's head: where Ray has written it down, unless the operator names it.

    Not `ray._private.worker.get_dashboard_url`, which in a worker is Ray's default port.
    """
    return os.environ.get(DASHBOARD_VARIABLE) or f"http://{get_webui_url_from_internal_kv()}"


async def _ask(method: str, *arguments: object, **named: object) -> Any:
    """Ask the controller, which may be on its way back for a while."""
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            controller = await asyncio.to_thread(ray.get_actor, CONTROLLER, namespace=NAMESPACE)
            async with asyncio.timeout(_ANSWER_S):
                return await getattr(controller, method).remote(*arguments, **named)
        except (ray.exceptions.RayError, ValueError, TimeoutError) as error:
            if time.monotonic() > until_s:
                raise UnavailableError(f"the controller does not answer: {error!r}") from error
        await asyncio.sleep(1.0)


def _kill_controller() -> None:
    try:
        controller = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
    except ValueError:
        return
    ray.kill(controller, no_restart=True)
