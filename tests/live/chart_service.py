"""A service as the chart brings it to a Ray cluster, without Kubernetes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from cluster.rayservice_files import APPLICATION
from tests.helm.chart import render
from tests.helm.plans import planned
from tests.live.bare_cluster import BareCluster
from tests.live.instance import free_port, until
from tests.live.scripted_instance import MODEL, SLOTS

OURS = "shardwise"
STEERING = {
    "mode": "advisory",
    "replan": {"canary_s": 20.0},
    "keeper": {"leave_s": 10.0},
}


class Service:
    """A RayService without Kubernetes: its chart is rendered, its configuration is put."""

    def __init__(self, folder: Path, cluster: BareCluster, *, scripted: bool) -> None:
        self.folder, self.cluster = folder, cluster
        self.port = free_port()
        self._scripted = scripted
        self._before = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def install(self, plan: str, **config: Any) -> None:
        """`helm install`, or `upgrade`, as far as Ray hears of it."""
        values = {"gateway": {"port": self.port}, "config": {"steering": STEERING} | config}
        made = render(self.folder, values, plan=plan).serve_config
        if self._scripted:
            made["applications"][0]["import_path"] = "tests.live.scripted_rayservice:application"
        self._before = self._deployed_s()
        self.cluster.put(made)

    def settled(self, *, limit_s: float = 240.0) -> str:
        """The status that Serve has come to, and its words: what KubeRay shows."""
        final = ("RUNNING", "DEPLOY_FAILED", "UNHEALTHY")

        def over() -> bool:
            status = self.cluster.application(APPLICATION)["status"]
            return self._deployed_s() > self._before and status in final

        until(over, limit_s=limit_s, what="the application has settled")
        found = self.cluster.application(APPLICATION)
        told = [d.get("message", "") for d in found.get("deployments", {}).values()]
        return " ".join([found["status"], found["message"], *told])

    def _deployed_s(self) -> float:
        return float(self.cluster.application(APPLICATION).get("last_deployed_time_s", 0.0))

    def status(self) -> dict[str, Any]:
        """What a gateway says of the service."""
        found: dict[str, Any] = httpx.get(f"{self.url}/status", timeout=20.0).json()
        return found

    def layout(self) -> str:
        return str(self.status()["replan"]["layouts"]["main"])


def plan_of(tp: int, *, replicas: int = 1) -> str:
    """For six cores. `replicas`: that there are at least."""
    plan = json.loads(planned(MODEL, "1x6xcpu", "--isl", "512", "--osl", "512"))
    (pool,) = plan["pools"]
    pool["layout"] |= {"tp": tp, "moe_tp": tp, "pp": 1, "max_num_seqs": SLOTS * tp}
    pool["engine_args"] |= {"tensor_parallel_size": tp, "max_num_seqs": SLOTS * tp}
    pool["expected"] = None
    pool["replicas"] = {"minimum": replicas, "initial": replicas, "maximum": 6 // tp}
    return json.dumps(plan)
