"""A Ray cluster of nodes that come and go by themselves, as pods do, its head's state in a Redis.

A node is a group of processes with a loopback address of its own. The head is reached at an address
that no node has, as by the name of its Kubernetes Service: behind it is the head that lives now.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import IO

import psutil

from serving.instance import INSTANCE_VARIABLE
from tests.live.instance import REPOSITORY, free_port, until
from tests.live.relay import Relay, relay
from tests.tooling.debian import libraries, tool

_RAY = Path(sys.executable).with_name("ray")
# As the kubelet does: on a busy machine Ray gives up its own start when its agent is late.
_AGAIN = 'while :; do "$0" "$@"; sleep 1; done'
_STORE_BYTES = 128 * 1024 * 1024
HEAD_SERVICE = "127.0.1.1"  # what all know the head by
# As KubeRay sets it for a RayService with GCS fault tolerance; workers wait so long for a head.
_RAY_SERVICE = {
    "RAY_timeout_ms_task_wait_for_death_info": "0",
    "RAY_gcs_server_request_timeout_seconds": "5",
    "RAY_SERVE_KV_TIMEOUT_S": "5",
}
_WAIT_FOR_HEAD = {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}


@dataclass
class Pod:
    """A node's processes. `folder`: of its own, gone with it, as a pod's file system."""

    folder: Path
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """SIGKILL to all at once: the machine is lost."""
        starter = psutil.Process(self.process.pid)
        for process in [starter, *starter.children(recursive=True)]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class Pods:
    """`home`: Shardwise's, on all nodes, as a volume that they share."""

    home: Path
    redis_port: int
    password: str
    relay: Relay
    token: str = field(default_factory=lambda: secrets.token_hex(20))
    running: list[Pod] = field(default_factory=list)
    _made: int = 0

    @property
    def dashboard(self) -> str:
        """As KubeRay reaches it: the head's, whichever lives."""
        return self.relay.at["dashboard"]

    def start_head(self) -> Pod:
        """A head, which finds what the one before it has written down. No engine goes there."""
        address = self._address()
        gcs, dashboard = free_port(), free_port()
        pod = self._start(
            address,
            *("--head", "--port", str(gcs), "--num-cpus", "0", "--redis-password", self.password),
            *("--dashboard-host", address, "--dashboard-port", str(dashboard)),
            *("--ray-client-server-port", str(free_port())),
            environment={
                "RAY_REDIS_ADDRESS": f"127.0.0.1:{self.redis_port}",
                "RAY_external_storage_namespace": "one-cluster",
            },
        )
        self.relay.lead("gcs", address, gcs)
        self.relay.lead("dashboard", address, dashboard)
        return pod

    def start_worker(self, *, cpus: int, resources: str = "{}") -> Pod:
        """A node for gateways or engines."""
        return self._start(
            self._address(),
            *("--address", self.relay.at["gcs"]),
            *("--num-cpus", str(cpus), "--resources", resources),
            environment=_WAIT_FOR_HEAD,
        )

    def _address(self) -> str:
        """Of a node: never one that another has had."""
        self._made += 1
        return f"127.0.2.{self._made}"

    def _start(self, address: str, *arguments: str, environment: Mapping[str, str]) -> Pod:
        folder = Path(mkdtemp(prefix="pod-", dir="/tmp"))  # short: sockets are named in it
        state = folder / "instance"
        state.mkdir()
        with (self.home / f"{address}.log").open("wb") as output:
            process = subprocess.Popen(
                [
                    *("sh", "-c", _AGAIN, str(_RAY)),
                    *("start", "--block", "--disable-usage-stats", *arguments),
                    *("--node-ip-address", address, "--temp-dir", str(folder)),
                    *("--dashboard-agent-listen-port", str(free_port())),
                    *("--object-store-memory", str(_STORE_BYTES)),
                ],
                env={
                    **os.environ,
                    **_RAY_SERVICE,
                    **environment,
                    INSTANCE_VARIABLE: str(state),
                    "SHARDWISE_HOME": str(self.home),
                    "SHARDWISE_DASHBOARD": f"http://{self.dashboard}",
                    "PYTHONPATH": os.pathsep.join(
                        [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
                    ),
                    "RAY_AUTH_MODE": "token",
                    "RAY_AUTH_TOKEN": self.token,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        pod = Pod(folder, process)
        self.running.append(pod)
        return pod


@contextmanager
def pods(home: Path) -> Iterator[Pods]:
    """No node yet, and a Redis. All of them end with the context."""
    password = secrets.token_hex(8)
    with (
        (home / "redis.log").open("wb") as output,
        relay(HEAD_SERVICE, "gcs", "dashboard") as service,
    ):
        port = free_port()
        with redis_server(home, port, password, output=output):
            made = Pods(home, port, password, service)
            try:
                yield made
            finally:
                for pod in made.running:
                    if pod.process.poll() is None:
                        pod.kill()


@contextmanager
def redis_server(home: Path, port: int, password: str, *, output: IO[bytes]) -> Iterator[None]:
    """As the chart's own: helm/shardwise/templates/redis.yaml."""
    folder = home / "redis"
    folder.mkdir()
    with subprocess.Popen(
        [
            *(str(tool("redis-server")), "--appendonly", "yes", "--dir", str(folder)),
            *("--requirepass", password, "--port", str(port), "--bind", "127.0.0.1"),
        ],
        env={**os.environ, **libraries("redis-server")},
        stdout=output,
        stderr=subprocess.STDOUT,
    ) as server:
        try:
            until(lambda: _listens(port), limit_s=60, what="redis listens")
            yield
        finally:
            server.terminate()
            server.wait(timeout=20)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False
