"""Answers of the HTTP application over scripted replicas."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.snapshot import Tier
from cluster.model.workload import Slo
from serving.http_api import build_app
from serving.settings.config import LimitsSection
from serving.telemetry.contract import scraped
from serving.telemetry.gateway_rows import GATEWAY_METRICS
from tests.serving.fakes import (
    Caller,
    FakeLink,
    Gate,
    Stage,
    answering,
    chat,
    directive,
    events,
    whole,
)

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


async def test_a_whole_answer() -> None:
    stage = Stage()
    stage.ready("a")
    async with stage.client() as client:
        response = await client.post(CHAT, json=chat(), headers={"X-Request-Id": "mine"})
    assert response.status_code == 200
    assert response.json() == whole("hello world")
    assert response.headers["X-Request-Id"] == "mine"
    assert response.headers["X-Shardwise-Tier"] == "0"
    assert "X-Shardwise-Degraded" not in response.headers
    stage.assert_idle()


async def test_a_stream() -> None:
    stage = Stage()
    stage.ready("a")
    async with stage.client() as client:
        response = await client.post(CHAT, json=chat(stream=True))
    assert response.headers["Content-Type"].startswith("text/event-stream")
    payloads = events(response.text)
    assert [("hello" in payloads[0]), ("world" in payloads[1]), payloads[2:]] == [
        True,
        True,
        ["[DONE]"],
    ]
    assert stage.value("shardwise_output_chunks_total", pool="main") == 2
    assert stage.value("shardwise_itl_seconds_count", pool="main") == 1
    assert stage.value("shardwise_ttft_seconds_count", pool="main") == 1
    assert stage.value("shardwise_requests_total", pool="main", status="200", priority="standard")
    stage.assert_idle()


async def test_replies_that_come_at_once_are_passed_on_at_once() -> None:
    async def script(request, replica_id):
        yield ["1", "2", "3", "[DONE]"]

    stage = Stage(link=FakeLink(script))
    stage.ready("a")
    async with stage.client() as client:
        response = await client.post(CHAT, json=chat(stream=True))
    assert events(response.text) == ["1", "2", "3", "[DONE]"]
    assert stage.value("shardwise_itl_seconds_count", pool="main") == 2


@pytest.mark.parametrize("given", ["", "x" * 200, "ä"])
async def test_an_unusable_request_id_is_replaced(given: str) -> None:
    stage = Stage()
    stage.ready("a")
    async with stage.client() as client:
        headers = {"X-Request-Id": given.encode("latin-1")}
        response = await client.post(CHAT, json=chat(), headers=headers)
    assert len(response.headers["X-Request-Id"]) == 32


async def test_callers_cannot_choose_the_engines_request_id() -> None:
    stage = Stage()
    stage.ready("a")
    async with stage.client() as client:
        for _ in range(2):
            await client.post(CHAT, json=chat(), headers={"X-Request-Id": "same"})
    ids = {request.request_id for _, request in stage.link.calls}
    assert len(ids) == 2
    assert "same" not in ids


async def test_the_engine_gets_what_the_caller_set_and_nothing_else() -> None:
    stage = Stage()
    stage.ready("a")
    parameters = {"type": "object", "properties": {"x": {"default": None}}}
    body = chat(
        messages=[{"role": "assistant", "content": None}, {"role": "user", "content": "hi"}],
        stop=None,
        temperature=0.5,
        tools=[{"type": "function", "function": {"name": "f", "parameters": parameters}}],
    )
    async with stage.client() as client:
        await client.post(CHAT, json=body)
    (_, request) = stage.link.calls[0]
    assert request.kind == "chat"
    assert request.body == {name: value for name, value in body.items() if name != "stop"}


async def test_a_completion_without_a_limit_gets_the_usual_one() -> None:
    stage = Stage()
    stage.ready("a")
    async with stage.client() as client:
        await client.post(TEXT, json={"model": "big", "prompt": "hi", "logprobs": 0})
        await client.post(TEXT, json={"model": "big", "prompt": [1] * 95})
    limits = [(r.kind, r.body["max_tokens"], r.body.get("logprobs")) for _, r in stage.link.calls]
    assert limits == [("completions", 16, 0), ("completions", 5, None)]


async def test_prompts_and_choices_count_as_load() -> None:
    stage = Stage()
    stage.ready("a")
    async with stage.client() as client:
        body = {"model": "big", "prompt": [[1, 2], [3]], "n": 3, "max_tokens": 10}
        await client.post(TEXT, json=body)
    assert stage.link.calls[0][1].tokens == pytest.approx((3 + 6 * 10 / 2) * 1.2)


async def test_the_first_event_is_sent_before_the_second_is_there() -> None:
    gate = Gate("first")
    stage = Stage(link=FakeLink(gate.script))
    stage.ready("a")
    caller = Caller(stage.app(), chat(stream=True))
    await caller.saw("first")
    assert not gate.open.is_set()
    gate.open.set()
    await caller.task
    assert caller.ended
    assert events(caller.text)[-1] == "[DONE]"
    stage.assert_idle()


async def test_ttft_counts_from_arrival() -> None:
    stage = Stage()
    caller = Caller(stage.app(), chat(stream=True))
    await asyncio.sleep(0.01)  # in line: no replica yet
    stage.clock.now_s += 3
    stage.ready("a")
    await caller.task
    assert stage.value("shardwise_ttft_seconds_sum", pool="main") == 3


# Operation.


async def test_ready_follows_the_replicas_of_the_main_pool() -> None:
    stage = Stage(with_light=True)
    async with stage.client() as client:
        assert (await client.get("/health")).status_code == 200
        stage.ready(light=["l"])
        assert (await client.get("/ready")).status_code == 503
        stage.ready("a", tier=Tier.SHORT_OUTPUT)
        ready = await client.get("/ready")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "tier": 2})


async def test_a_pool_that_sleeps_is_ready_unless_its_starts_fail() -> None:
    stage = Stage(sleeping=["main"])
    async with stage.client() as client:
        assert (await client.get("/ready")).status_code == 200
        stage.service.follow(replace(directive(), troubles={"main": "starts fail"}))
        assert (await client.get("/ready")).status_code == 503


async def test_who_wakes_a_pool_waits_longer_than_in_a_line() -> None:
    limits = LimitsSection(queue_wait_s=0.02, wake_wait_s=5)
    stage = Stage(sleeping=["main"], limits=limits)
    caller = Caller(stage.app(), chat(stream=True))
    await asyncio.sleep(0.2)
    stage.ready("a")
    await caller.task
    assert stage.value("shardwise_ttft_seconds_count", pool="main") == 1


async def test_models() -> None:
    async with Stage(with_light=True).client() as client:
        listed = (await client.get("/v1/models")).json()
        one = (await client.get("/v1/models/big")).json()
    assert [card["id"] for card in listed["data"]] == ["big", "small"]
    assert one["max_model_len"] == 100


async def test_every_series_of_a_gateway_is_there_before_anything_has_happened() -> None:
    stage = Stage(slo=Slo(ttft_s=2.0))
    stage.ready("a", "b", tier=Tier.SHORT_OUTPUT)
    async with stage.client() as client:
        response = await client.get("/metrics")
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    found = {
        sample.name
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
    told = {name for metric in scraped() for name in metric.series}
    own = {name for metric in GATEWAY_METRICS for name in metric.series}
    # Who has a key, and what a start has taken, nobody knows beforehand.
    later = {"shardwise_key_tokens_total", "shardwise_replica_start_seconds"}
    assert found <= told
    assert own - found == later
    assert stage.value("shardwise_ready_replicas", pool="main") == 2
    assert stage.value("shardwise_slo_ttft_seconds", pool="main") == 2.0
    assert stage.value("shardwise_slo_tpot_seconds", pool="main") == math.inf
    assert stage.value("shardwise_degraded_total", change="shed") == 0.0


async def test_an_account_that_has_grown_old_is_shown_no_more() -> None:
    stage = Stage()
    stage.ready("a")
    name, labels = "shardwise_replica_host_bytes", {"pool": "main", "replica": "a"}
    stage.service.refresh_gauges()
    assert stage.value(name, **labels) == 1e9
    stage.clock.now_s += 61.0
    stage.service.refresh_gauges()
    assert name not in stage.metrics.render().decode()
    assert stage.value("shardwise_directive_age_seconds") == 61.0


async def test_requests_are_counted_by_whether_they_met_the_slo() -> None:
    stage = Stage(slo=Slo(ttft_s=2.0))
    stage.link.script = answering("x", "y")
    async with stage.client() as client:
        stage.ready("a")
        await client.post(CHAT, json=chat(stream=True))
        await client.post(CHAT, json=chat(model="nobody"))
        stage.ready("a", tier=Tier.SHED)
        await client.post(CHAT, json=chat(stream=True))
    counted = {
        verdict: stage.value("shardwise_slo_requests_total", pool="main", verdict=verdict)
        for verdict in ("met", "missed")
    }
    assert counted == {"met": 1, "missed": 1}


async def test_the_targets_are_the_gateways_that_the_controller_knows() -> None:
    async def status() -> dict[str, Any]:
        return {"gateways": [{"address": "h:2"}, {"address": "h:1"}]}

    app = build_app(Stage().service, status=status)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:
        response = await client.get("/metrics/targets")
    assert response.json() == [{"targets": ["h:1", "h:2"]}]
