"""What the chart renders is put to a Ray cluster, answers, and moves to another plan under load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cluster.rayservice_files import APPLICATION
from tests.helm.plans import planned
from tests.live.bare_cluster import bare_cluster
from tests.live.callers import under_load
from tests.live.chart_service import OURS, Service, plan_of
from tests.live.instance import link_models
from tests.live.scripted_instance import MODEL

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


def test_a_real_engine_answers_a_chat(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="needs the cpu or gpu extra")
    (tmp_path / "home").mkdir()
    link_models(tmp_path / "home")
    plan = planned(
        *(MODEL, "1x1xcpu", "--isl", "64", "--osl", "32"),
        *("--max-model-len", "512", "--max-replicas", "1"),
    )
    with bare_cluster(tmp_path / "home") as cluster:
        service = Service(tmp_path, cluster, scripted=False)
        service.install(plan)
        assert service.settled(limit_s=420.0).startswith("RUNNING")
        answer = httpx.post(
            f"{service.url}/v1/chat/completions",
            json={
                "model": MODEL,
                "messages": [{"role": "user", "content": "What is the capital of France?"}],
                "max_tokens": 16,
                "temperature": 0,
            },
            timeout=120.0,
        )
    assert answer.status_code == 200, answer.text
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Scripted engines, under the first plan."""
    folder = tmp_path_factory.mktemp("rayservice")
    (folder / "home").mkdir()
    link_models(folder / "home")
    with bare_cluster(folder / "home") as cluster:
        made = Service(folder, cluster, scripted=True)
        made.install(plan_of(1))
        assert made.settled().startswith("RUNNING")
        yield made


def test_only_what_was_put_is_kuberay_s_and_what_serves_is_beside_it(service: Service) -> None:
    assert service.cluster.declared() == {APPLICATION}
    assert service.cluster.application(OURS)["status"] == "RUNNING"
    assert httpx.get(f"{service.url}/ready", timeout=20.0).status_code == 200


def test_another_plan_and_the_way_back_lose_no_request(service: Service) -> None:
    with under_load(service.url):
        service.install(plan_of(3))
        assert service.settled().startswith("RUNNING")
        assert service.layout() == "TP3"
    with under_load(service.url):
        service.install(plan_of(1))  # helm rollback
        assert service.settled().startswith("RUNNING")
        assert service.layout() == "TP1"


def test_what_cannot_be_taken_in_place_is_told_and_serving_goes_on(service: Service) -> None:
    with under_load(service.url):
        service.install(plan_of(1), limits={"max_queued": 8})
        told = service.settled()
    assert told.startswith("DEPLOY_FAILED")
    assert "another serving configuration (differs in: limits)" in told
    service.install(plan_of(1))
    assert service.settled().startswith("RUNNING")
