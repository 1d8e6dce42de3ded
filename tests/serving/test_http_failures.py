"""What fails before the first reply is tried elsewhere, what fails after it is told."""

import asyncio

import pytest

from serving.messages import EngineError
from serving.settings.config import LimitsSection
from tests.serving.fakes import (
    Caller,
    FakeLink,
    Stage,
    chat,
    events,
    failing,
    lost_after,
)

CHAT = "/v1/chat/completions"

OUT_OF_MEMORY = EngineError(status=500, message="out of memory", retryable=True)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("script", [lost_after(), failing(OUT_OF_MEMORY)])
async def test_a_failure_before_the_first_reply_is_retried_elsewhere(stream, script) -> None:
    stage = Stage(link=FakeLink(by_replica={"a": script}))
    stage.ready("a", "b")
    async with stage.client() as client:
        response = await client.post(CHAT, json=chat(stream=stream))
    assert response.status_code == 200
    assert [replica for replica, _ in stage.link.calls] == ["a", "b"]
    assert response.text.count("hello") == 1
    assert len({request.request_id for _, request in stage.link.calls}) == 2
    assert stage.value("shardwise_retries_total", pool="main") == 1
    stage.assert_idle()


async def test_a_lost_replica_is_suspect_a_failed_request_makes_none() -> None:
    lost = Stage(link=FakeLink(by_replica={"a": lost_after()}))
    poison = Stage(link=FakeLink(by_replica={"a": failing(OUT_OF_MEMORY)}))
    for stage, ready in ((lost, 1), (poison, 2)):
        stage.ready("a", "b")
        async with stage.client() as client:
            await client.post(CHAT, json=chat())
        assert stage.dispatcher.ready == ready


@pytest.mark.parametrize("script", [lost_after("once"), failing(OUT_OF_MEMORY, "once")])
async def test_a_failure_after_the_first_reply_ends_the_stream_with_an_error(script) -> None:
    stage = Stage(link=FakeLink(by_replica={"a": script}))
    stage.ready("a", "b")
    caller = Caller(stage.app(), chat(stream=True))
    await caller.task
    first, error = events(caller.text)
    assert caller.ended
    assert "once" in first
    assert error.startswith('{"error": {"message": ')
    assert len(stage.link.calls) == 1
    assert stage.value("shardwise_broken_streams_total", pool="main") == 1
    stage.assert_idle()


async def test_a_stream_without_its_end_is_an_error_and_not_a_short_answer() -> None:
    async def script(request, replica_id):
        yield ["half"]

    stage = Stage(link=FakeLink(script))
    stage.ready("a")
    async with stage.client() as client:
        response = await client.post(CHAT, json=chat(stream=True))
    assert events(response.text)[0] == "half"
    assert "ended early" in events(response.text)[1]


async def test_a_bug_in_mid_stream_ends_it_with_an_error() -> None:
    async def script(request, replica_id):
        yield ["half"]
        raise ZeroDivisionError

    stage = Stage(link=FakeLink(script))
    stage.ready("a")
    caller = Caller(stage.app(), chat(stream=True))
    await caller.task
    assert "Internal error" in events(caller.text)[1]
    assert caller.ended
    stage.assert_idle()


async def test_what_the_engine_refuses_is_not_tried_elsewhere() -> None:
    refusal = EngineError(status=400, message="no such grammar", retryable=False)
    stage = Stage(link=FakeLink(failing(refusal)))
    stage.ready("a", "b")
    async with stage.client() as client:
        response = await client.post(CHAT, json=chat(stream=True))
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "no such grammar"
    assert len(stage.link.calls) == 1
    stage.assert_idle()


async def test_when_every_attempt_fails_the_caller_gets_503_with_the_reason() -> None:
    stage = Stage(link=FakeLink(failing(OUT_OF_MEMORY)))
    stage.ready("a", "b", "c")
    async with stage.client() as client:
        response = await client.post(CHAT, json=chat())
    assert (response.status_code, response.headers["Retry-After"]) == (503, "7")
    assert "out of memory" in response.json()["error"]["message"]
    assert sorted(replica for replica, _ in stage.link.calls) == ["a", "b", "c"]
    stage.assert_idle()


async def test_the_only_replica_gets_a_failed_request_again_after_a_new_report() -> None:
    stage = Stage(link=FakeLink(by_replica={"a": failing(OUT_OF_MEMORY)}))
    stage.ready("a")
    caller = Caller(stage.app(), chat())
    await asyncio.sleep(0.01)
    assert (len(stage.link.calls), caller.task.done()) == (1, False)
    stage.link.by_replica.clear()
    stage.clock.now_s += 1
    stage.ready("a")
    await asyncio.wait_for(caller.task, 5)
    assert (caller.status, len(stage.link.calls)) == (200, 2)


async def test_with_nowhere_to_go_a_failed_request_ends_in_time() -> None:
    limits = LimitsSection(queue_wait_s=0.05)
    stage = Stage(limits=limits, link=FakeLink(lost_after()))
    stage.ready("a")
    async with stage.client() as client:
        response = await asyncio.wait_for(client.post(CHAT, json=chat()), 5)
    assert response.status_code == 503
    assert "replica a was lost" in response.json()["error"]["message"]
    stage.assert_idle()
