"""Deploying on a running Ray cluster touches nothing that others run there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.live.instance import LiveInstance, free_port, link_models, until, write_config
from tests.serving.otlp import Collector, collecting

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

# A cluster with a Serve application of somebody else's.
OTHERS = """
import sys, threading, ray
from ray import serve
ray.init("local", num_cpus=4, dashboard_host="127.0.0.1", log_to_driver=False)
@serve.deployment(ray_actor_options={"num_cpus": 0})
class Other:
    def __call__(self):
        return "other"
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
serve.run(Other.bind(), name="other", route_prefix="/other")
print("ADDRESS", ray.get_runtime_context().gcs_address, flush=True)
try:
    threading.Event().wait(300)
except KeyboardInterrupt:
    pass
serve.shutdown()
ray.shutdown()
"""


@contextmanager
def cluster_of_others(port: int) -> Iterator[str]:
    """The address of a running cluster that serves /other on the port."""
    env = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", OTHERS, str(port)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as cluster:
        assert cluster.stdout is not None
        try:
            line = next(text for text in cluster.stdout if text.startswith("ADDRESS"))
            yield line.split()[1]
        finally:
            cluster.send_signal(signal.SIGINT)
            cluster.wait(timeout=60)


def instance(home: Path, *, port: int) -> LiveInstance:
    home.mkdir()
    link_models(home)
    made = LiveInstance(home, port)
    write_config(made.config, port=port, steering={})
    return made


SPANS = {"chat", "admission", "queue", "attempt", "engine", "llm_request"}


def in_trace(collector: Collector) -> set[str]:
    """Names of the spans in the one trace, as far as they have come; of each the first word."""
    spans = [span for _, span in collector.spans]
    traces = {span.trace_id for span in spans if span.name.startswith("chat ")}
    assert len(traces) <= 1
    return {span.name.split()[0] for span in spans if span.trace_id in traces}


def named_actors(instance: LiveInstance) -> set[str]:
    """Actors of ours on the cluster, those of a node by the first two words of their name."""
    token = Path.home() / ".ray" / "auth_token"
    headers = {"Authorization": f"Bearer {token.read_text().strip()}"} if token.is_file() else {}
    url = f"http://{instance.progress()['dashboard']}/api/v0/actors?detail=1&limit=1000"
    actors = httpx.get(url, headers=headers, timeout=30.0).json()["data"]["result"]["result"]
    names = [a["name"] for a in actors if a["state"] != "DEAD" and a["name"]]
    return {"-".join(n.split("-")[:2]) for n in names if n.startswith("shardwise")}


def test_a_cluster_of_others_is_joined_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How a driver says that the cluster asks for Ray's token, and that it is a loopback one.
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    ours, second = (instance(tmp_path / name, port=free_port()) for name in ("ours", "second"))
    port = free_port()  # of the Serve that runs there
    plan = tmp_path / "plan.json"
    planned = ours.command(
        *("plan", "--model", "smollm2-135m-instruct", "--cluster", "local", "--isl", "64"),
        *("--osl", "32", "--max-model-len", "256", "--max-replicas", "1", "--out", str(plan)),
    )
    assert planned.returncode == 0, planned.stderr
    with cluster_of_others(port) as address, collecting() as collector:
        # Set where we deploy from, and unknown to the cluster.
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        to_cluster = ("up", str(plan), "--address", address)
        up = ours.command(*to_cluster, "--config", str(ours.config))
        assert up.returncode == 0, up.stdout + up.stderr
        try:
            refused = second.command(*to_cluster, "--config", str(second.config))
            assert refused.returncode == 2
            assert "already runs a Serve application 'shardwise'" in refused.stderr
            assert "Paris" in ours.command("chat", "What is the capital of France?").stdout
            # Spans leave every few seconds; who is stopped before loses those.
            until(lambda: in_trace(collector) >= SPANS, limit_s=60.0, what="the whole trace")
            ours_there = {"shardwise-controller", "shardwise-keeper", "shardwise-weights"}
            until(lambda: named_actors(ours) == ours_there, limit_s=60.0, what="all actors")
        finally:
            assert ours.command("down").returncode == 0
        until(lambda: not named_actors(ours), limit_s=90.0, what="our actors are gone")
        assert httpx.get(f"http://127.0.0.1:{port}/other", timeout=20.0).text == "other"
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{ours.url}/health", timeout=20.0)
    assert in_trace(collector) == SPANS
