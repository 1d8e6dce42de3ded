"""Answers of the HTTP application over scripted replicas."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.snapshot import Tier
from serving.settings.config import LimitsSection
from tests.serving.fakes import (
    Caller,
    FakeLink,
    Gate,
    Stage,
    answering,
    chat,
    directive,
    events,
    lost_after,
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


async def test_every_series_is_rendered() -> None:
    stage = Stage(link=FakeLink(by_replica={"a": lost_after(), "b": lost_after("once")}))
    stage.metrics.key_tokens.labels("team", "output").inc()
    stage.metrics.long_inputs.labels("reject").inc()
    stage.metrics.long_input_cut.labels("rerank").inc()
    stage.metrics.moved.labels("main").inc()
    stage.metrics.resumed.labels("main").inc()
    stage.metrics.replica_start.labels("main", "engine").set(1.0)
    stage.metrics.canaries.labels("main", "answered").inc()
    stage.ready("a", "b", tier=Tier.SHORT_OUTPUT)
    async with stage.client() as client:
        await client.post(CHAT, json=chat(stream=True))
        stage.link.by_replica.clear()
        stage.link.script = answering("x", "y")
        stage.clock.now_s += 1
        stage.ready("a", "b")
        await client.post(CHAT, json=chat(stream=True))
        response = await client.get("/metrics")
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    families = {f.name: f for f in text_string_to_metric_families(response.text)}
    ours = {name: f for name, f in families.items() if not name.endswith("_created")}
    assert all(family.samples for family in ours.values())
    assert set(ours) == {
        "shardwise_arriving_work",
        "shardwise_broken_streams",
        "shardwise_canary",
        "shardwise_degraded",
        "shardwise_delivered_ratio",
        "shardwise_in_flight_tokens",
        "shardwise_itl_seconds",
        "shardwise_key_tokens",
        "shardwise_long_input_cut_tokens",
        "shardwise_long_inputs",
        "shardwise_moved_requests",
        "shardwise_output_chunks",
        "shardwise_output_ratio",
        "shardwise_output_tokens",
        "shardwise_predicted_output_tokens",
        "shardwise_queued_requests",
        "shardwise_ready_replicas",
        "shardwise_replica_device_bytes",
        "shardwise_replica_host_bytes",
        "shardwise_replica_restarts",
        "shardwise_requests",
        "shardwise_resumed_streams",
        "shardwise_replica_start_seconds",
        "shardwise_retired_replicas",
        "shardwise_retries",
        "shardwise_swept",
        "shardwise_starts_held",
        "shardwise_tasks",
        "shardwise_tier",
        "shardwise_ttft_seconds",
    }
    (ready,) = (s.value for s in ours["shardwise_ready_replicas"].samples)
    assert ready == 2
