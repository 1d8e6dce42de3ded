"""How does a decision reach Ray Serve? Its own REST interface: read the state, set the target.

The application is deployed with Serve's external scaler switched on, so Serve's autoscaler and
ours cannot both own a deployment. Later generations of a pool (`serving.layout.generations`) are
applications of their own, `APP-POOL-NUMBER`, with one deployment called as the pool; here they are
named like deployments of the first application, by the application's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from cluster.errors import UnavailableError

# Serve's replica states; one that is to be moved to another node still answers.
_ANSWERING = frozenset({"RUNNING", "PENDING_MIGRATION"})
_STARTING = frozenset({"STARTING", "UPDATING", "RECOVERING"})
# Of an application, whatever its deployment says.
_FINAL = frozenset({"DEPLOY_FAILED", "DELETING"})


@dataclass(frozen=True, kw_only=True)
class ServeReplica:
    """A replica in Serve's own books. `since_s`: when its actor was started, wall clock.

    `pid`, `node_id`: where it runs, 0 and empty before Ray has placed it. `worker_id`: of the Ray
    worker it runs in, by which Ray names its logs.
    """

    replica_id: str
    state: str
    actor_name: str = ""
    node_id: str = ""
    worker_id: str = ""
    pid: int = 0
    since_s: float = 0.0

    @property
    def answers(self) -> bool:
        """Whether Serve routes to it."""
        return self.state in _ANSWERING

    @property
    def starts(self) -> bool:
        """Whether it is on its way."""
        return self.state in _STARTING


@dataclass(frozen=True, kw_only=True)
class DeploymentState:
    """One deployment as Serve reports it.

    `message`: Serve's own words about trouble. `answering`: ids of the replicas it routes to.
    `replicas`: those in any state. `origin`: what it says of itself as a generation. `deploying`:
    its application comes up for the first time.
    """

    name: str
    status: str
    target: int
    running: int
    starting: int
    message: str
    answering: frozenset[str] = frozenset()
    replicas: tuple[ServeReplica, ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)
    deploying: bool = False

    def replica(self, replica_id: str) -> ServeReplica | None:
        """One of its replicas, None if Serve knows it no more."""
        return next((r for r in self.replicas if r.replica_id == replica_id), None)

    @property
    def alive(self) -> int:
        """Replicas in any state."""
        return len(self.replicas)

    @property
    def nodes(self) -> Mapping[str, str]:
        """On which node each replica is."""
        return {replica.replica_id: replica.node_id for replica in self.replicas}


class ServeScaler:
    """Client of Serve's REST interface for one application. `transport`: None for the network."""

    def __init__(
        self,
        *,
        dashboard_url: str,
        app: str,
        token: str | None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.AsyncClient(
            base_url=dashboard_url,
            headers=headers,
            timeout=5.0,
            transport=transport,
            trust_env=False,  # the cluster's own address, not a matter for a proxy
        )
        self._app = app
        self._generation = re.compile(rf"{re.escape(app)}-([a-z]+)-[0-9]+")

    async def states(self) -> dict[str, DeploymentState]:
        """Deployments of the application, and later generations, by name.

        Raises UnavailableError.
        """
        details = await self._request("GET", "/api/serve/applications/")
        apps: dict[str, Any] = details.get("applications", {})
        first = apps.get(self._app, {}).get("deployments", {})
        deploying = apps.get(self._app, {}).get("status") == "DEPLOYING"
        found = {name: _state(name, data, deploying=deploying) for name, data in first.items()}
        for name, app in apps.items():
            if (generation := self._generation.fullmatch(name)) is not None:
                found[name] = _later(name, generation[1], app)
        return found

    async def scale(self, deployment: str, replicas: int) -> None:
        """Ask for a number of replicas. Raises UnavailableError."""
        generation = self._generation.fullmatch(deployment)
        app, name = (self._app, deployment) if generation is None else (deployment, generation[1])
        path = f"/api/v1/applications/{app}/deployments/{name}/scale"
        await self._request("POST", path, json={"target_num_replicas": replicas})

    async def output(self, replica: ServeReplica) -> str:
        """What a replica's worker has printed lately; empty if Ray does not say."""
        where = {"node_id": replica.node_id, "pid": str(replica.pid), "lines": "500"}
        texts: list[str] = []
        for suffix in ("err", "out"):
            try:
                response = await self._client.get(
                    "/api/v0/logs/file", params={**where, "suffix": suffix}
                )
            except httpx.HTTPError:
                continue
            if response.is_success:
                texts.append(response.text)
        return "\n".join(texts)

    async def _request(
        self, method: str, path: str, json: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        try:
            response = await self._client.request(method, path, json=json)
            data = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise UnavailableError(
                f"Ray Serve did not answer {method} {path}: {error!r}. Is the Ray dashboard up?"
            ) from error
        if response.is_error or not isinstance(data, dict):
            raise UnavailableError(
                f"Ray Serve refused {method} {path} with {response.status_code}: "
                f"{response.text[:200]}"
            )
        return data


def _state(name: str, data: dict[str, Any], *, deploying: bool = False) -> DeploymentState:
    replicas = tuple(_replica(replica) for replica in data.get("replicas", []))
    return DeploymentState(
        name=name,
        status=str(data.get("status", "")),
        target=int(data.get("target_num_replicas") or 0),
        running=sum(replica.answers for replica in replicas),
        starting=sum(replica.starts for replica in replicas),
        message=str(data.get("message", "")),
        answering=frozenset(replica.replica_id for replica in replicas if replica.answers),
        replicas=replicas,
        origin=(data.get("deployment_config") or {}).get("user_config") or {},
        deploying=deploying,
    )


def _replica(data: dict[str, Any]) -> ServeReplica:
    return ServeReplica(
        replica_id=str(data.get("replica_id") or ""),
        state=str(data.get("state") or ""),
        actor_name=str(data.get("actor_name") or ""),
        node_id=str(data.get("node_id") or ""),
        worker_id=str(data.get("worker_id") or ""),
        pid=int(data.get("pid") or 0),
        since_s=float(data.get("start_time_s") or 0.0),
    )


def _later(name: str, pool: str, app: dict[str, Any]) -> DeploymentState:
    """A generation: its one deployment, under the application's name, status and words."""
    state = _state(name, app.get("deployments", {}).get(pool, {}))
    status = str(app.get("status", ""))
    told = state.message or str(app.get("message", ""))
    return replace(
        state, status=status if status in _FINAL else state.status or status, message=told
    )
