"""The head process of an instance: starts or joins Ray, deploys, waits, and takes all down again.

    python -m serving.head STATE_DIRECTORY        (started by `shardwise up`)

It runs in a session of its own and survives the terminal. SIGTERM ends it and all it started.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import ray
from ray import serve

from cluster.errors import InputError, ShardwiseError, UnavailableError
from cluster.model.plan import Plan, load_plan
from cluster.ray_backend.auth import ray_token
from cluster.ray_backend.ray_supply import node_supply
from serving import app
from serving.control.scaler import DeploymentState, ServeScaler
from serving.controller_life import ControllerLife
from serving.deploy import APP, NAMESPACE, begin, deployment_of
from serving.diagnosis import failure, waiting_for
from serving.first_room import FirstRoom
from serving.instance import Instance, Progress
from serving.keeper.ray_cluster import end_keepers
from serving.layout.layout_desk import LayoutDesk
from serving.settings.config import ServeConfig, load_serve_config
from serving.sources import resolve_sources
from serving.tracing import variables
from serving.weights.cluster import stop_stores

_STATUS_S = 5.0
_ORDER_S = 30.0
_REPOSITORY = Path(__file__).resolve().parent.parent

logger = logging.getLogger("shardwise.head")


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What `shardwise up` asks of the head. `address`: an existing Ray cluster, or None."""

    plan: Plan
    config: ServeConfig
    address: str | None


class Head:
    """The head process's work, in order."""

    def __init__(self, instance: Instance, orders: Orders) -> None:
        self._instance = instance
        self._orders = orders
        self._progress = Progress(phase="starting", doing="starting Ray", namespace=NAMESPACE)
        self._room = FirstRoom(node_supply)
        self._stop = threading.Event()
        self._deployed = False
        self._controller: ControllerLife | None = None
        self._logs: Path | None = None  # Ray's, where it is started here

    def run(self) -> int:
        """Bring the instance up, keep it, take it down. Returns the exit code."""
        self._listen()
        adopt_orphans()
        code = 0
        try:
            self._keep(self._up())
        except _StopRequested:
            pass
        except ShardwiseError as error:
            code = error.exit_code
            self._progress = replace(self._progress, exit_code=code)
            self._fail(str(error))
        except Exception as error:
            code = 1
            logger.exception("the instance failed")
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._down(failed=code != 0)
        return code

    def _up(self) -> ControllerLife:
        sources = resolve_sources(self._orders.plan)
        context = self._start_ray()
        self._listen()  # Ray has put its own handlers there
        self._room.check(app.first_replicas(self._orders.plan), _nodes())
        self._tell("starting Serve and the controller", dashboard=context.dashboard_url)
        # No proxies: callers reach the gateways themselves (`serving.entry`).
        serve.start(proxy_location="Disabled")
        deployment = deployment_of(
            self._orders.plan,
            self._orders.config,
            sources=sources,
            dashboard_url=f"http://{context.dashboard_url}",
            log_path=self._instance.decisions_path,
        )
        if self._orders.address is not None:
            self._must_be_free()
        self._deployed = True
        self._controller, application = begin(deployment)
        self._deploy(application)
        self._wait_until_ready()
        self._progress = replace(self._progress, phase="ready")
        self._tell("serving")
        return self._controller

    def _start_ray(self) -> Any:
        if self._orders.address is not None:
            return _join(self._orders.address)
        plan = self._orders.plan
        ranks = sum(
            pool.layout.to_layout(replicas=pool.replicas.maximum).devices for pool in plan.pools
        )
        resources: dict[str, Any] = {}
        if plan.cluster.device_kind == "cpu":
            # A CPU rank is a share of the cores, not a core: the light pool may exceed the count.
            resources["num_cpus"] = max(ranks, psutil.cpu_count() or 1)
        context = ray.init(
            address="local",
            namespace=NAMESPACE,
            dashboard_host="127.0.0.1",
            include_dashboard=True,
            object_store_memory=256 * 1024 * 1024,
            log_to_driver=False,
            **resources,
        )
        self._logs = Path(context.address_info["session_dir"]) / "logs"
        return context

    def _deploy(self, application: serve.Application) -> None:
        """Deploy, telling meanwhile what Serve is waiting for."""
        outcome: list[BaseException | None] = []

        def deploy() -> None:
            try:
                serve.run(application, name=APP, route_prefix=None, external_scaler_enabled=True)
                outcome.append(None)
            except Exception as error:
                outcome.append(error)

        thread = threading.Thread(target=deploy, daemon=True)
        thread.start()
        while thread.is_alive():
            self._tell("; ".join(filter(None, [waiting_for(self._states()), self._room.waiting()])))
            thread.join(timeout=1.0)
            self._check()
        if outcome[0] is not None:
            why = failure(self._states(), logs=self._logs) or str(outcome[0])
            where = f" The engine's output is in {self._logs}." if self._logs else ""
            raise UnavailableError(f"the application did not start: {why.rstrip('.')}.{where}")

    def _must_be_free(self) -> None:
        """Refuse a second owner: two controllers on one application would fight.

        Raises UnavailableError if Serve does not say: what may be another's is not deployed over.
        """
        if asyncio.run(self._scaler().states()):
            raise InputError(
                f"the cluster already runs a Serve application '{APP}'. Fix: `shardwise down` "
                "where it was started, or delete it, before deploying another."
            )

    def _states(self) -> Mapping[str, DeploymentState]:
        """The deployments as Serve reports them, none if it does not answer yet."""
        try:
            return asyncio.run(self._scaler().states())
        except UnavailableError:
            return {}

    def _generations(self) -> list[str]:
        """Applications beside the first."""
        return [name for name in self._states() if name.startswith(f"{APP}-")]

    def _scaler(self) -> ServeScaler:
        return ServeScaler(
            dashboard_url=f"http://{self._progress.dashboard}", app=APP, token=ray_token()
        )

    def _wait_until_ready(self) -> None:
        endpoint = f"http://{self._gateway_host()}:{self._orders.config.http.port}"
        self._progress = replace(
            self._progress,
            endpoint=f"{endpoint}/v1",
            models=tuple(pool.model.name for pool in self._orders.plan.pools),
            ray_address=ray.get_runtime_context().gcs_address,
        )
        while True:
            self._tell("waiting for the gateway to see a replica")
            try:
                if httpx.get(f"{endpoint}/ready", timeout=2.0, trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.25)
            self._check()

    def _gateway_host(self) -> str:
        """Where a gateway is, as it has told the controller."""
        while True:
            self._tell("waiting for a gateway")
            try:
                controller = ray.get_actor(app.CONTROLLER, namespace=NAMESPACE)
                gateways = ray.get(controller.status.remote(), timeout=_STATUS_S)["gateways"]
            except (ray.exceptions.RayError, ValueError):  # restarted, or slow: asked again
                gateways = []
            if gateways:
                return str(gateways[0]["address"]).rpartition(":")[0]
            time.sleep(0.25)
            self._check()

    def _listen(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _keep(self, controller: ControllerLife) -> None:
        desk = LayoutDesk(self._instance)
        while not self._stop.wait(1.0):
            self._record()
            if not ray.is_initialized():
                raise UnavailableError("the connection to Ray was lost")
            with contextlib.suppress(ray.exceptions.RayError, OSError, ValueError):
                controller.look()
                desk.serve(_ask_controller)  # away or restarted: asked again

    def _down(self, *, failed: bool) -> None:
        """Take down what this head has brought up and nothing else, step by step."""
        if not failed:
            self._progress = replace(self._progress, phase="stopping")
            self._tell("draining and stopping")
        self._record()
        if ray.is_initialized():
            if self._deployed:
                _attempt(_kill_controller)  # first: it may be about to deploy
                for name in self._generations():
                    _attempt(partial(serve.delete, name))
                _attempt(lambda: serve.delete(APP))
                _attempt(lambda: end_keepers(NAMESPACE))
                _attempt(lambda: stop_stores(NAMESPACE))
            if self._orders.address is None:
                _attempt(serve.shutdown)  # on a cluster of others, Serve is not ours to end
            _attempt(ray.shutdown)
        self._instance.sweep(grace_s=5.0)
        if not failed:
            self._progress = replace(self._progress, phase="stopped")
            self._tell("stopped")

    def _tell(self, doing: str, *, dashboard: str = "") -> None:
        dashboard = dashboard or self._progress.dashboard
        self._progress = replace(self._progress, doing=doing, dashboard=dashboard)
        with contextlib.suppress(OSError):  # a full disk must not end the service
            self._instance.write(self._progress)
        self._record()

    def _record(self) -> None:
        descendants = psutil.Process().children(recursive=True)
        with contextlib.suppress(OSError):
            self._instance.record(descendants)
        for process in descendants:
            bury(process)

    def _fail(self, reason: str) -> None:
        self._progress = replace(self._progress, phase="failed")
        self._tell(reason)

    def _on_signal(self, *_: object) -> None:
        self._stop.set()

    def _check(self) -> None:
        """While it is brought up: is it still wanted, and does the controller start?"""
        if self._stop.is_set():
            raise _StopRequested
        if self._controller is not None:
            self._controller.check()


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent dies (Linux's child subreaper).

    Without it a process whose parent was killed would escape to init, and out of our sight.
    """
    set_child_subreaper = 36  # prctl(2), linux/prctl.h
    ctypes.CDLL(None, use_errno=True).prctl(set_child_subreaper, 1, 0, 0, 0)


def bury(process: psutil.Process) -> None:
    """Collect an adopted child that has ended; its own parent is no longer there to do it."""
    with contextlib.suppress(psutil.Error, ChildProcessError):
        if process.status() == psutil.STATUS_ZOMBIE and process.ppid() == os.getpid():
            os.waitpid(process.pid, os.WNOHANG)


class _StopRequested(Exception):  # noqa: N818  # not an error: the user asked for it
    """SIGTERM came while the instance was starting."""


def _join(address: str) -> Any:
    """Connect to a running cluster; the repository and where traces go travel to its nodes."""
    try:
        return ray.init(
            address=address,
            namespace=NAMESPACE,
            runtime_env={
                "working_dir": str(_REPOSITORY),
                "excludes": [".venv", ".git"],
                "env_vars": variables(),
            },
        )
    except ConnectionError as error:
        raise UnavailableError(
            f"cannot connect to a Ray cluster at {address}. Is it up and reachable from here? If "
            "it asks for a token, set RAY_AUTH_MODE=token (and RAY_AUTH_TOKEN_PATH)."
        ) from error


def _ask_controller(method: str, *arguments: object, **named: object) -> Any:
    controller = ray.get_actor(app.CONTROLLER, namespace=NAMESPACE)
    return ray.get(getattr(controller, method).remote(*arguments, **named), timeout=_ORDER_S)


def _kill_controller() -> None:
    controller = ray.get_actor(app.CONTROLLER, namespace=NAMESPACE)
    ray.kill(controller, no_restart=True)


def _attempt(step: Callable[[], object]) -> None:
    """One step of taking down: what it raises is logged, the next one comes all the same."""
    try:
        step()
    except Exception:
        logger.exception("taking down")


def _nodes() -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def main() -> int:
    """Entry point of the head process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    parser = argparse.ArgumentParser(prog="serving.head")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--address")
    arguments = parser.parse_args()
    instance = Instance(arguments.directory)
    instance.write_pid(os.getpid())
    orders = Orders(
        plan=load_plan(instance.plan_path),
        config=load_serve_config(instance.config_path),
        address=arguments.address,
    )
    return Head(instance, orders).run()


if __name__ == "__main__":
    sys.exit(main())
