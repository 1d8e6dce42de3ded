"""A pool with a minimum of none goes when nobody asks; who asks then is held and answered."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.live.instance import FAST_STEERING, until
from tests.live.scripted_instance import MODEL, ScriptedInstance, scripted_instance

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

BOUNDS = {"minimum": 0, "initial": 1, "maximum": 1}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedInstance]:
    home = tmp_path_factory.mktemp("home")
    with scripted_instance(home, replicas=BOUNDS, steering=FAST_STEERING) as instance:
        yield instance


def test_a_pool_falls_asleep_and_who_comes_then_is_held_until_it_wakes(
    service: ScriptedInstance,
) -> None:
    until(lambda: not service.status()["replicas"], limit_s=120, what="the pool is asleep")
    assert httpx.get(f"{service.url}/ready", timeout=20.0).status_code == 200
    body = {"model": MODEL, "prompt": "wake up", "max_tokens": 4}
    answer = httpx.post(f"{service.url}/v1/completions", json=body, timeout=200.0)
    assert answer.status_code == 200, answer.text
    assert len(service.status()["replicas"]) == 1
    reasons = [decision["reason"] for decision in service.status()["decisions"]]
    assert any("there is no load" in reason for reason in reasons)
