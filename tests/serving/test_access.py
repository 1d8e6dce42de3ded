"""API keys at the HTTP edge: who is let in, to what, how often, and what it is charged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from autoscaler.snapshot import Tier
from serving.control.observe import Heard
from serving.keys import KeyRing, hashed
from serving.messages import EngineError
from tests.serving.fakes import (
    Caller,
    FakeLink,
    Gate,
    Script,
    Stage,
    chat,
    chunk,
    directive,
    events,
    failing,
    report,
    whole,
)

CHAT = "/v1/chat/completions"
PROMPT = 3  # tokens of `chat()`


def ring(tmp_path: Path, **rights: Any) -> KeyRing:
    """One key, `sw-k`, of "team"; and `sw-other`, which may do anything."""
    keys = [
        {"name": "team", "sha256": hashed("sw-k"), **rights},
        {"name": "other", "sha256": hashed("sw-other"), "priority": "vip"},
    ]
    path = tmp_path / "keys.yaml"
    path.write_text(yaml.safe_dump({"keys": keys}), encoding="utf-8")
    return KeyRing(path)


def stage(tmp_path: Path, *, script: Script | None = None, **rights: Any) -> Stage:
    made = Stage(
        ring=ring(tmp_path, **rights),
        with_light=True,
        link=FakeLink(script or using(output=5)),
    )
    made.ready("a", light=["b"])
    return made


def using(*, output: int, prompt: int = PROMPT) -> Script:
    """A replica whose answer tells its usage, as vLLM does."""
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    async def script(request: Any, replica_id: str) -> Any:
        del replica_id
        if not request.stream:
            yield [{**whole("hi"), "usage": usage}]
            return
        for _ in range(2):
            yield [chunk("word")]
        if request.body.get("stream_options", {}).get("include_usage"):
            alone = {"id": "c", "choices": [], "usage": usage}
            yield [json.dumps(alone, separators=(",", ":")), "[DONE]"]
        else:
            yield ["[DONE]"]

    return script


async def ask(
    on: Stage, key: str | None = "sw-k", headers: dict[str, str] | None = None, **fields: Any
) -> httpx.Response:
    given = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with on.client() as client:
        return await client.post(CHAT, json=chat(**fields), headers=given | (headers or {}))


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


@pytest.mark.parametrize("key", [None, "", "sw-wrong", hashed("sw-k")])
async def test_without_a_key_of_ours_nobody_is_let_in(tmp_path: Path, key: str | None) -> None:
    on = stage(tmp_path)
    response = await ask(on, key)
    assert code(response) == (401, "invalid_api_key")
    assert response.json()["error"]["type"] == "authentication_error"
    async with on.client() as client:
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/v1/models/big")).status_code == 401
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ready")).status_code == 200
    assert on.link.calls == []


async def test_a_stranger_is_refused_before_the_body_is_read(tmp_path: Path) -> None:
    on = stage(tmp_path)
    async with on.client() as client:
        response = await client.post(CHAT, content=b"x" * (on.limits.max_body_bytes + 1))
    assert response.status_code == 401


async def test_without_a_key_file_anyone_may_ask() -> None:
    on = Stage()
    on.ready("a")
    assert (await ask(on, None)).status_code == 200
    assert (await ask(on, "none")).status_code == 200


async def test_a_key_may_use_its_own_models_only(tmp_path: Path) -> None:
    on = stage(tmp_path, models=["small"])
    response = await ask(on, model="big")
    assert code(response) == (403, "model_not_allowed")
    assert "'small'" in response.json()["error"]["message"]
    assert (await ask(on, model="small")).status_code == 200
    assert code(await ask(on, model="none")) == (404, "model_not_found")
    bearer = {"Authorization": "Bearer sw-k"}
    async with on.client() as client:
        listed = (await client.get("/v1/models", headers=bearer)).json()["data"]
        assert [model["id"] for model in listed] == ["small"]
        assert (await client.get("/v1/models/big", headers=bearer)).status_code == 403


async def test_the_class_is_the_keys_and_may_be_lowered_only(tmp_path: Path) -> None:
    on = stage(tmp_path)
    seen = "shardwise_requests_total"
    assert (await ask(on, "sw-other")).status_code == 200
    assert on.value(seen, pool="main", status="200", priority="vip") == 1
    lower = {"X-Shardwise-Priority": "batch"}
    assert (await ask(on, "sw-other", lower)).status_code == 200
    assert on.value(seen, pool="main", status="200", priority="batch") == 1
    response = await ask(on, "sw-k", {"X-Shardwise-Priority": "vip"})
    assert code(response) == (403, "priority_not_allowed")
    assert "'standard' at most" in response.json()["error"]["message"]


async def test_requests_per_minute(tmp_path: Path) -> None:
    on = stage(tmp_path, requests_per_minute=2)
    first, second = await ask(on), await ask(on)
    assert [r.headers["x-ratelimit-remaining-requests"] for r in (first, second)] == ["1", "0"]
    third = await ask(on)
    assert code(third) == (429, "rate_limit_exceeded")
    assert third.headers["Retry-After"] == "30"
    assert (await ask(on, "sw-other")).status_code == 200, "another key has its own budget"
    on.clock.now_s += 30
    on.ready("a")
    assert (await ask(on)).status_code == 200
    assert (await ask(on)).status_code == 429


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_are_charged_as_used(tmp_path: Path, stream: bool) -> None:
    on = stage(tmp_path, script=using(output=47), tokens_per_minute=100)
    assert (await ask(on, stream=stream, max_tokens=60)).status_code == 200
    team = on.service.door.caller({"Authorization": "Bearer sw-k"}).allowance
    assert team is not None
    assert team.tokens is not None
    assert team.tokens.left(on.clock()) == 100 - PROMPT - 47
    for kind, tokens in (("prompt", PROMPT), ("output", 47)):
        assert on.value("shardwise_key_tokens_total", key="team", kind=kind) == tokens
    refused = await ask(on, max_tokens=60)
    assert code(refused) == (429, "rate_limit_exceeded")
    assert "50 are left and 63 are needed" in refused.json()["error"]["message"]
    assert refused.headers["Retry-After"] == "8"  # 13 tokens at 100 a minute
    on.clock.now_s += 8
    on.ready("a")
    assert (await ask(on, max_tokens=60)).status_code == 200


async def test_more_than_was_predicted_is_a_debt(tmp_path: Path) -> None:
    on = stage(tmp_path, script=using(output=90), tokens_per_minute=60)
    assert (await ask(on)).status_code == 200
    refused = await ask(on)
    assert code(refused) == (429, "rate_limit_exceeded")
    assert float(refused.headers["Retry-After"]) >= 90 - 60 + PROMPT


async def test_a_prompt_that_never_fits_is_the_callers_mistake(tmp_path: Path) -> None:
    on = stage(tmp_path, tokens_per_minute=2)
    response = await ask(on)
    assert code(response) == (400, "prompt_over_rate_limit")
    assert "3 tokens" in response.json()["error"]["message"]


async def test_usage_is_shown_to_those_who_asked_for_it(tmp_path: Path) -> None:
    on = stage(tmp_path)
    quiet = events((await ask(on, stream=True)).text)
    assert len(quiet) == 3
    assert quiet[-1] == "[DONE]"
    asked = events((await ask(on, stream=True, stream_options={"include_usage": True})).text)
    assert len(asked) == 4
    assert json.loads(asked[2])["usage"]["completion_tokens"] == 5


async def test_a_refused_request_costs_nothing(tmp_path: Path) -> None:
    on = stage(tmp_path, tokens_per_minute=100, requests_per_minute=5)
    on.ready("a", tier=Tier.SHED)
    assert code(await ask(on)) == (429, "overloaded")
    team = on.service.door.caller({"Authorization": "Bearer sw-k"}).allowance
    assert team is not None
    assert team.tokens is not None
    assert team.requests is not None
    assert team.tokens.left(on.clock()) == 100
    assert team.requests.left(on.clock()) == 5
    on.assert_idle()


async def test_a_failed_request_costs_no_tokens(tmp_path: Path) -> None:
    broken = failing(EngineError(status=500, message="no", retryable=False))
    on = stage(tmp_path, script=broken, tokens_per_minute=100)
    assert (await ask(on)).status_code == 500
    assert (await ask(on, max_tokens=97)).status_code == 500, "what was reserved was not returned"


async def test_a_cancelled_stream_is_charged_what_was_sent(tmp_path: Path) -> None:
    gate = Gate("one", "two")
    on = stage(tmp_path, script=gate.script, tokens_per_minute=100)
    caller = Caller(on.app(), chat(stream=True, max_tokens=50), key="sw-k")
    await caller.saw("two")
    caller.leave()
    await caller.task
    team = on.service.door.caller({"Authorization": "Bearer sw-k"}).allowance
    assert team is not None
    assert team.tokens is not None
    assert team.tokens.left(on.clock()) == 100 - PROMPT - 2
    on.assert_idle()


async def test_a_limit_that_changes_begins_anew(tmp_path: Path) -> None:
    on = stage(tmp_path, requests_per_minute=1)
    assert (await ask(on)).status_code == 200
    assert (await ask(on)).status_code == 429
    ring(tmp_path, requests_per_minute=3)
    assert on.ring is not None
    on.ring._looked_s -= 60
    assert (await ask(on)).status_code == 200


async def test_a_budget_is_that_of_all_gateways_together(tmp_path: Path) -> None:
    here, there = (stage(tmp_path, requests_per_minute=3) for _ in range(2))
    heard = Heard()

    def exchange() -> None:
        reports = {name: on.service.report() for name, on in (("here", here), ("there", there))}
        heard.gateways = reports
        for name, on in (("here", here), ("there", there)):
            on.service.follow(
                replace(
                    directive(report("a", sent_s=on.clock())),
                    charged=heard.charged(name),
                    elsewhere=heard.elsewhere(name),
                )
            )

    exchange()
    assert [(await ask(here)).status_code for _ in range(2)] == [200, 200]
    exchange()
    assert (await ask(there)).status_code == 200
    assert code(await ask(there)) == (429, "rate_limit_exceeded")
    exchange()
    exchange()  # what was heard is not charged twice
    assert code(await ask(here)) == (429, "rate_limit_exceeded")
    here.clock.now_s += 20
    assert (await ask(here)).status_code == 200
