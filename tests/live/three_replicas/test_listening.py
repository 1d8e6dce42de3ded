"""What listens is on the security page, on this machine's own address, and asks who is there."""

from __future__ import annotations

import contextlib

import httpx
import pytest

from tests.live.listening import beyond_loopback, row_of, sockets_of
from tests.live.scripted_instance import ScriptedInstance

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

OURS = ("ServeReplica:shardwise:gateway", "ServeReplica:", "WeightStore", "gcs_server", "raylet")
RAYS_METRICS = ("dashboard/dashboard.py", "autoscaler/_private/monitor.py", "DashboardAgent")


@pytest.fixture(scope="module")
def served(three_replicas: ScriptedInstance) -> ScriptedInstance:
    three_replicas.whole()  # whatever others have done to its replicas
    return three_replicas


def test_everything_that_listens_is_on_the_page_and_on_loopback(served: ScriptedInstance) -> None:
    found = sockets_of(served)
    assert [each for each in found if row_of(each) is None] == []
    assert {*OURS} <= {row_of(each) for each in found}
    assert beyond_loopback(served) == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/jobs/"),
        ("POST", "/api/jobs/"),
        ("GET", "/api/serve/applications/"),
        ("PUT", "/api/serve/applications/"),
        ("GET", "/api/v0/logs?node_id=any"),
        ("GET", "/nodes?view=summary"),
    ],
)
def test_rays_interfaces_refuse_who_has_no_token(
    served: ScriptedInstance, method: str, path: str
) -> None:
    url = f"http://{served.progress()['dashboard']}{path}"
    assert httpx.request(method, url, timeout=30.0).status_code == 401
    wrong = {"Authorization": "Bearer wrong"}
    assert httpx.request(method, url, headers=wrong, timeout=30.0).status_code == 403


def test_without_a_token_ray_tells_its_metrics_and_nothing_else(served: ScriptedInstance) -> None:
    answering = set()
    for each in sockets_of(served):
        for path in ("/", "/metrics", "/logs/"):
            with contextlib.suppress(httpx.HTTPError):
                answer = httpx.get(f"http://127.0.0.1:{each.port}{path}", timeout=10.0)
                if answer.status_code == 200:
                    answering.add((row_of(each), path))
    gateway = "ServeReplica:shardwise:gateway"
    metrics = {(name, "/metrics") for name in (gateway, *RAYS_METRICS)}
    assert metrics <= answering
    # A page without data, and what a Prometheus server answers on every path.
    assert answering - metrics <= {("dashboard/dashboard.py", "/")} | {
        (name, path) for name in RAYS_METRICS for path in ("/", "/logs/")
    }


def test_a_replica_and_a_weight_store_answer_nobody_without_the_secret(
    served: ScriptedInstance,
) -> None:
    for each in sockets_of(served):
        if row_of(each) in ("ServeReplica:", "WeightStore"):
            with pytest.raises(httpx.HTTPError):
                httpx.get(f"http://127.0.0.1:{each.port}/", timeout=30.0)
