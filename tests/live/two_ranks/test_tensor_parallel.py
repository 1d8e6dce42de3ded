"""A TP=2 plan becomes two Ray workers in one placement group: asked of Ray, not of ourselves.

Its service asks for a key, so what a key is charged is compared with what the engine has done.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.live.instance import LiveInstance, until
from tests.live.listening import beyond_loopback, row_of, sockets_of
from tests.live.two_ranks.keys import Keys

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


@dataclass(frozen=True, kw_only=True)
class Served:
    """A tiny model on two ranks, behind a key."""

    instance: LiveInstance
    key: str

    def ask(self, *, key: str | None, **fields: Any) -> httpx.Response:
        return httpx.post(
            f"{self.instance.url}/v1/completions",
            json={"model": "tiny", "prompt": "one two three", "max_tokens": 4, **fields},
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            timeout=120.0,
        )


@pytest.fixture(scope="module")
def served(two_ranks: LiveInstance, keys: Keys) -> Served:
    return Served(instance=two_ranks, key=keys.team)


def test_ranks_and_where_they_meet_are_on_the_security_page_and_on_loopback(
    served: Served,
) -> None:
    assert [each for each in sockets_of(served.instance) if row_of(each) is None] == []
    assert beyond_loopback(served.instance) == []


def test_tensor_parallel_ranks_share_a_placement_group(served: Served) -> None:
    answer = served.ask(key=served.key)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 4
    actors, groups = _ray_state(served.instance)
    workers = _ranks(actors)
    assert len(workers) == 2
    assert len({worker["placement_group_id"] for worker in workers}) == 1
    group = next(g for g in groups if g["placement_group_id"] == workers[0]["placement_group_id"])
    assert group["state"] == "CREATED"
    assert len(group["bundles"]) == 2


def test_the_memory_of_ranks_is_their_replicas(served: Served) -> None:
    actors, _ = _ray_state(served.instance)
    ranks = [psutil.Process(rank["pid"]) for rank in _ranks(actors)]
    resident = sum(rank.memory_full_info().uss for rank in ranks)
    until(lambda: bool(_host_bytes(served)), limit_s=60.0, what="the keeper has looked")
    assert _host_bytes(served) > resident > 0


def _ranks(actors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # Those of a start that was given up are listed for a while, dead.
    return [a for a in actors if a["class_name"] == "CpuRayWorker" and a["state"] == "ALIVE"]


def _host_bytes(served: Served) -> float:
    (replica,) = served.instance.status()["replicas"]
    return float(replica["host_bytes"] or 0.0)


def test_a_key_is_charged_what_the_engine_has_used(served: Served) -> None:
    for wrong in (None, "sw-wrong"):
        refused = served.ask(key=wrong)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
    before = _used(served)
    whole = served.ask(key=served.key, max_tokens=5, ignore_eos=True)
    used = whole.json()["usage"]
    streamed = served.ask(key=served.key, max_tokens=7, ignore_eos=True, stream=True)
    assert '"choices":[]' not in streamed.text, "nobody asked for the usage"
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert int(streamed.headers["x-ratelimit-limit-tokens"]) == 1000
    after = _used(served)
    assert after["output"] - before["output"] == 5 + 7
    assert after["prompt"] - before["prompt"] == 2 * used["prompt_tokens"]


def _used(served: Served) -> dict[str, float]:
    text = httpx.get(f"{served.instance.url}/metrics", timeout=30.0).text
    counted = {"prompt": 0.0, "output": 0.0}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "shardwise_key_tokens_total" and sample.labels["key"] == "team":
                counted[sample.labels["kind"]] = sample.value
    return counted


def _ray_state(instance: LiveInstance) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Actors and placement groups, from the state interface of the instance's own cluster."""
    token = Path.home() / ".ray" / "auth_token"
    headers = {"Authorization": f"Bearer {token.read_text().strip()}"} if token.is_file() else {}
    dashboard = instance.progress()["dashboard"]
    found = []
    for what in ("actors", "placement_groups"):
        response = httpx.get(
            f"http://{dashboard}/api/v0/{what}?detail=1&limit=1000", headers=headers, timeout=30.0
        )
        response.raise_for_status()
        found.append(response.json()["data"]["result"]["result"])
    return found[0], found[1]
