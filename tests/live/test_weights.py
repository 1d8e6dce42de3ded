"""A real engine starts on a node that had no weights: they came from the other node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.bundled import HEAVY, bundled_path
from serving.direct_link import DirectLink
from serving.messages import EngineRequest, EngineSpec, ReplicaReport
from serving.weights.spec import WeightsSpec, model_key
from tests.live.instance import REPOSITORY

pytest.importorskip("vllm", reason="needs the cpu or gpu extra")
ray = pytest.importorskip("ray", reason="needs the serve extra")
pytestmark = [pytest.mark.live, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]

NAMESPACE = "weights"
BUNDLE = {"CPU": 1.0, "new": 1.0}  # only the second node has it
ENGINE = {
    "max_model_len": 256,
    "dtype": "float32",
    "enforce_eager": True,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 256,
    "kv_cache_memory_bytes": 64 * 1024 * 1024,
}


@pytest.fixture
def new_node_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cluster of two nodes, of which the second knows no model directory."""
    from ray import serve
    from ray.cluster_utils import Cluster

    from serving.weights.cluster import stop_stores

    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1")
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    home = tmp_path / "new"
    cluster.add_node(num_cpus=1, resources={"new": 1.0}, env_vars={"SHARDWISE_HOME": str(home)})
    ray.init(
        cluster.address,
        log_to_driver=False,
        namespace=NAMESPACE,
        runtime_env={"env_vars": {"PYTHONPATH": str(REPOSITORY)}},
    )
    serve.start(proxy_location="Disabled")
    yield home
    serve.shutdown()
    stop_stores(NAMESPACE)
    ray.shutdown()
    cluster.shutdown()


def deployed(spec: EngineSpec) -> ReplicaReport:
    from ray import serve

    from serving.engine.replica import EngineReplica

    deployment = serve.deployment(
        EngineReplica,
        name="main",
        ray_actor_options={"num_cpus": 0},
        placement_group_bundles=[dict(BUNDLE)],
    )
    handle = serve.run(deployment.bind(spec), name="weights", route_prefix=None)
    report: ReplicaReport = handle.report.remote().result()
    return report


async def answer(report: ReplicaReport, *, secret: str) -> Any:
    body = {"model": "m", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    request = EngineRequest(kind="completions", body=body, request_id="one", tokens=8.0)
    link = DirectLink(secret=secret, reach_s=10.0)
    link.observe([report])
    calls = link.call(request, replica_id=report.replica_id)
    (reply,) = [reply async for replies in calls for reply in replies]
    await link.close()
    return reply


def test_a_replica_on_a_new_node_answers_from_fetched_weights(new_node_home: Path) -> None:
    from serving.weights.cluster import start_store

    original = bundled_path(HEAVY)
    key = model_key(str(original))
    start_store({key: str(original)}, namespace=NAMESPACE, cache_dir=None)
    spec = EngineSpec(
        pool="main",
        model_name="m",
        model_source=str(new_node_home / "no" / "such" / "directory"),
        engine_args=dict(ENGINE),
        device_kind="cpu",
        bundles=(BUNDLE,),
        controller="none",
        namespace=NAMESPACE,
        link_secret="weights",
        weights=WeightsSpec(key=key, namespace=NAMESPACE, arbiter="none"),
    )
    report = deployed(spec)
    (copy,) = [path for path in (new_node_home / "weights" / key).iterdir() if path.is_dir()]
    for file in copy.iterdir():
        assert file.read_bytes() == (original / file.name).read_bytes()
    assert report.start is not None
    print(f"weights {report.start.weights_s:.1f} s, engine {report.start.engine_s:.1f} s")
    reply = asyncio.run(answer(report, secret=spec.link_secret))
    assert "Paris" in reply["choices"][0]["text"]
