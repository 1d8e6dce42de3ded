"""A plan is deployed on a cluster without a node for it: Ray's autoscaler brings one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.live.growing_cluster import growing_cluster
from tests.live.instance import LiveInstance, free_port, link_models, until, write_config

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

REFUSED = "it has no node for 1 placement group(s) that wait, nor may add one"


def test_up_says_what_it_waits_for_and_serves_once_a_node_may_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for home in ("ours", "theirs"):
        (tmp_path / home).mkdir()
        link_models(tmp_path / home)
    ours = LiveInstance(tmp_path / "ours", free_port())
    write_config(ours.config, port=ours.port, steering={})
    plan = tmp_path / "plan.json"
    planned = ours.command(
        *("plan", "--model", "smollm2-135m-instruct", "--cluster", "1x1xcpu", "--isl", "64"),
        *("--osl", "32", "--max-model-len", "256", "--max-replicas", "1", "--out", str(plan)),
    )
    assert planned.returncode == 0, planned.stderr
    with growing_cluster(tmp_path / "theirs", nodes=0) as cluster, ThreadPoolExecutor() as threads:
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        monkeypatch.setenv("RAY_AUTH_TOKEN", str(cluster.token))
        monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        to_cluster = ("up", str(plan), "--address", cluster.address, "--config", str(ours.config))
        up = threads.submit(ours.command, *to_cluster)
        try:
            until(lambda: up.done() or REFUSED in doing(ours), limit_s=180, what="it is refused")
            assert not up.done(), up.result()
            assert "pool 'main': replica 1 of 1 needs 1 CPU(s) on one node" in doing(ours)
            cluster.allow(1)
            told = up.result()
            assert told.returncode == 0, told.stdout + told.stderr
            assert "Paris" in ours.command("chat", "What is the capital of France?").stdout
        finally:
            assert ours.command("down").returncode == 0


def doing(ours: LiveInstance) -> str:
    """What `up` tells meanwhile."""
    try:
        return str(ours.progress()["doing"])
    except (OSError, KeyError, ValueError):  # not begun, or just being written
        return ""
