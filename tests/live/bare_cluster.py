"""A Ray cluster on this machine with nothing on it, as KubeRay hands one a Serve configuration."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from serving.instance import INSTANCE_VARIABLE
from tests.live.instance import REPOSITORY

# What a cluster's process does while it is used; then it ends what was deployed, by its names.
USED = """
import contextlib, threading
import ray
from ray import serve
from serving.app import CONTROLLER
from serving.deploy import NAMESPACE
from serving.keeper.ray_cluster import end_keepers
from serving.weights.cluster import stop_stores

def used(dashboard):
    print("DASHBOARD", dashboard, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait(1500)
    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(CONTROLLER, namespace=NAMESPACE), no_restart=True)
    serve.shutdown()
    end_keepers(NAMESPACE)
    stop_stores(NAMESPACE)
    ray.shutdown()
"""
# One node that is head, gateways' node and engines' node.
_CLUSTER = """
used(ray.init(
    "local", num_cpus=6, resources={"shardwise-gateway": 4}, namespace=NAMESPACE,
    dashboard_host="127.0.0.1", log_to_driver=False, object_store_memory=256 * 1024 * 1024,
).dashboard_url)
"""


@dataclass(frozen=True)
class BareCluster:
    """A running cluster, by its dashboard."""

    dashboard: str
    token: str | None = None  # None: what Ray has made for this user

    def listens(self) -> bool:
        """Whether Serve can be given something."""
        try:
            return self._request("GET").is_success
        except httpx.HTTPError:
            return False

    def put(self, serve_config: Mapping[str, Any]) -> None:
        """As KubeRay does with a RayService's configuration."""
        response = self._request("PUT", json=dict(serve_config))
        assert response.is_success, response.text

    def application(self, name: str) -> dict[str, Any]:
        """What Serve says of an application."""
        applications = self._request("GET").json()["applications"]
        found: dict[str, Any] = applications.get(name, {"status": "NOT_STARTED", "message": ""})
        return found

    def declared(self) -> set[str]:
        """Applications that KubeRay sees: those that came by this interface."""
        return set(self._request("GET", params={"api_type": "declarative"}).json()["applications"])

    def workers(self) -> int:
        """Living nodes beside the head."""
        answer = self._request("GET", path="/api/v0/nodes", params={"detail": "1"}).json()
        nodes = answer["data"]["result"]["result"]
        return sum(node["state"] == "ALIVE" and not node["is_head_node"] for node in nodes)

    def _request(
        self, method: str, *, path: str = "/api/serve/applications/", **arguments: Any
    ) -> httpx.Response:
        token = self.token or (Path.home() / ".ray" / "auth_token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        url = f"http://{self.dashboard}{path}"
        return httpx.request(method, url, headers=headers, timeout=60.0, **arguments)


@contextmanager
def bare_cluster(home: Path) -> Iterator[BareCluster]:
    """Runs for as long as the context lasts. `home`: Shardwise's."""
    with cluster_process(home, USED + _CLUSTER) as dashboard:
        yield BareCluster(dashboard)


@contextmanager
def cluster_process(
    home: Path, script: str, *arguments: str, env: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """A process that runs a cluster and prints where its dashboard is; ended by SIGINT."""
    state = home / "instance"
    state.mkdir(parents=True)
    environment = {
        **os.environ,
        INSTANCE_VARIABLE: str(state),
        "SHARDWISE_HOME": str(home),
        "PYTHONPATH": os.pathsep.join(
            [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        **env,
    }
    with (
        (home / "cluster.log").open("w") as output,
        subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            env=environment,
            cwd=home,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        ) as cluster,
    ):
        assert cluster.stdout is not None
        try:
            line = next(text for text in cluster.stdout if text.startswith("DASHBOARD"))
            yield line.split()[1]
        finally:
            cluster.send_signal(signal.SIGINT)
            cluster.wait(timeout=120)
