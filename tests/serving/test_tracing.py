"""One trace per request: its steps, how each ended, and whose trace it is."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from autoscaler.snapshot import Tier
from serving import span_names as names
from serving.engine.spans import with_spans
from serving.messages import EngineError, EngineReply, EngineRequest
from serving.settings.config import LimitsSection
from tests.serving.fakes import (
    Caller,
    FakeLink,
    Gate,
    Stage,
    answering,
    chat,
    failing,
    lost_after,
    report,
    whole,
)
from tests.serving.spans import (
    PARENT,
    TRACE,
    TRACEPARENT,
    Spans,
    event_names,
    everything,
    span_id,
    told,
    trace_id,
)
from tests.serving.test_direct_link import pair, said
from tests.serving.test_resumption import Model
from tests.serving.test_second_scheduling import SOON_S, until

CHAT = "/v1/chat/completions"
OUT_OF_MEMORY = EngineError(status=500, message="out of memory", retryable=True)


def stage(spans: Spans, *replicas: str, **parts: Any) -> Stage:
    made = Stage(tracer=spans.tracer, **parts)
    made.ready(*(replicas or ("a",)))
    return made


async def ask(on: Stage, *, headers: Any = None, **fields: Any) -> int:
    async with on.client() as client:
        response = await client.post(CHAT, json=chat(**fields), headers=headers)
    return response.status_code


async def test_a_request_is_a_span_with_its_steps_below_it() -> None:
    spans = Spans()
    await ask(stage(spans), stream=True, max_tokens=7, headers={"X-Request-Id": "mine"})
    request = spans.request
    assert request.name == "chat big"
    assert request.kind is SpanKind.SERVER
    assert spans.under(request) == ["admission", "queue", "attempt"]
    assert event_names(request) == ["tokenised", "first_token", "stream_end"]
    assert request.status.status_code is StatusCode.UNSET
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "big",
        "gen_ai.response.model": "big",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.usage.input_tokens": 3,
        "http.route": CHAT,
        "http.response.status_code": 200,
        "shardwise.request_id": "mine",
        "shardwise.pool": "main",
        "shardwise.priority": "standard",
        "shardwise.tier": 0,
        "shardwise.outcome": "completed",
    }
    assert expected.items() <= told(request).items()
    (attempt,) = spans.named("attempt")
    assert told(attempt)["shardwise.replica"] == "a"
    assert told(attempt)["shardwise.attempt.reason"] == "first"


async def test_usage_is_the_engines_own() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}

    async def script(request: EngineRequest, replica_id: str) -> Any:
        yield [{**whole("x"), "usage": usage}]

    spans = Spans()
    await ask(stage(spans, link=FakeLink(script)))
    assert told(spans.request)[names.OUTPUT_TOKENS] == 5


async def test_what_a_tier_has_changed_is_told() -> None:
    spans = Spans()
    on = Stage(tracer=spans.tracer, with_light=True)
    on.ready("a", light=["b"], tier=Tier.LIGHT_MODEL)
    await ask(on)
    assert told(spans.request)[names.REQUEST_MODEL] == "big"
    assert told(spans.request)[names.RESPONSE_MODEL] == "small"
    assert told(spans.request)[names.POOL] == "light"
    assert told(spans.request)[names.TIER] == 3
    assert "light-model" in told(spans.request)[names.CHANGES]


@pytest.mark.parametrize("script", [lost_after(), failing(OUT_OF_MEMORY)])
async def test_each_attempt_is_a_span_and_a_failed_one_says_so(script: Any) -> None:
    spans = Spans()
    on = stage(spans, "a", "b", link=FakeLink(by_replica={"a": script}))
    assert await ask(on) == 200
    first, second = spans.named("attempt")
    assert first.status.status_code is StatusCode.ERROR
    assert told(first)[names.ERROR_TYPE] in ("500", "503")
    assert told(second)[names.REPLICA] == "b"
    assert told(second)[names.REASON] == "retry"
    assert spans.under(spans.request).count("queue") == 2
    assert "retry" in event_names(spans.request)
    assert spans.request.status.status_code is StatusCode.UNSET


async def test_a_stream_that_moves_has_a_span_on_both_replicas() -> None:
    spans, gate = Spans(), Gate()
    link = FakeLink(answering("quick"), by_replica={"a": gate.script})
    on = stage(spans, "a", link=link, limits=LimitsSection(reschedule_s=SOON_S))
    caller = Caller(on.app(), chat(stream=True))
    await until(lambda: on.link.running == 1)
    on.ready("a", "b", queueing="a")
    await caller.task
    slow, quick = spans.named("attempt")
    assert [told(span)[names.REPLICA] for span in (slow, quick)] == ["a", "b"]
    assert told(slow)[names.OUTCOME] == "cancelled"
    assert slow.status.status_code is StatusCode.UNSET
    assert told(quick)[names.REASON] == "move"
    assert "move" in event_names(spans.request)


async def test_a_stream_that_is_taken_up_is_one_trace_with_all_its_tokens() -> None:
    spans = Spans()
    on = stage(spans, "a", "b", link=FakeLink(Model(3).script))
    await ask(on, stream=True, max_tokens=8)
    broken, rest = spans.named("attempt")
    assert told(broken)[names.OUTCOME] == "error"
    assert told(rest)[names.REASON] == "resume"
    assert told(spans.request)[names.OUTCOME] == "completed"
    assert told(spans.request)[names.OUTPUT_TOKENS] == 8
    assert event_names(spans.request).count("first_token") == 1


async def test_a_stream_that_stays_broken_is_an_error_whatever_its_status() -> None:
    spans = Spans()
    await ask(stage(spans, link=FakeLink(lost_after("once"))), stream=True)
    assert told(spans.request)[names.OUTCOME] == "error"
    assert told(spans.request)["http.response.status_code"] == 200
    assert spans.request.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize("stream", [True, False])
async def test_a_caller_that_leaves_ends_every_span(stream: bool) -> None:
    spans, gate = Spans(), Gate()
    on = stage(spans, link=FakeLink(gate.script))
    caller = Caller(on.app(), chat(stream=stream))
    await gate.reached.wait()
    caller.leave()
    await caller.task
    assert {span.name for span in spans.all} == {"chat big", "admission", "queue", "attempt"}
    assert told(spans.request)[names.OUTCOME] == "cancelled"
    assert told(spans.named("attempt")[0])[names.OUTCOME] == "cancelled"
    on.assert_idle()


async def test_a_caller_that_leaves_the_line_ends_its_span() -> None:
    spans = Spans()
    on = Stage(tracer=spans.tracer)  # no replica is ready
    caller = Caller(on.app(), chat())
    await until(lambda: on.dispatcher.load().queued_requests == 1)
    caller.leave()
    await caller.task
    assert told(spans.named("queue")[0])[names.OUTCOME] == "cancelled"
    assert not spans.named("attempt")


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"model": "none"}, "model_not_found"), ({"top_q": 1}, "unknown_parameter")],
)
async def test_a_mistake_of_the_callers_is_named_and_is_no_error_of_ours(
    fields: dict[str, Any], code: str
) -> None:
    spans = Spans()
    await ask(stage(spans), **fields)
    for span in spans.all:
        assert told(span)[names.ERROR_TYPE] == code
        assert span.status.status_code is StatusCode.UNSET
    assert spans.under(spans.request) == ["admission"]


async def test_no_replica_is_an_error_of_ours() -> None:
    spans = Spans()
    on = Stage(tracer=spans.tracer, limits=LimitsSection(queue_wait_s=0.01))
    assert await ask(on) == 503
    assert spans.request.status.status_code is StatusCode.ERROR
    assert told(spans.request)[names.ERROR_TYPE] == "no_replica"


async def test_spans_hold_no_words_of_prompt_answer_or_error() -> None:
    spans = Spans()
    said_so = EngineError(status=400, message="cannot read MARKER", retryable=False)
    scripts = [answering("MARKER"), failing(said_so), lost_after("MARKER")]
    marked = [{"role": "user", "content": "MARKER"}]
    for script in scripts:
        for stream in (True, False):
            await ask(stage(spans, link=FakeLink(script)), messages=marked, stream=stream)
    await ask(stage(spans), MARKER=1)
    await ask(stage(spans), max_tokens="MARKER")
    assert len(spans.all) > 10
    assert "MARKER" not in everything(spans)


async def test_the_callers_trace_goes_on_in_ours_and_reaches_the_replica() -> None:
    spans = Spans()
    on = stage(spans)
    await ask(on, headers={"traceparent": TRACEPARENT, "tracestate": "vendor=1"})
    assert {trace_id(span) for span in spans.all} == {TRACE}
    parent = spans.request.parent
    assert parent is not None
    assert f"{parent.span_id:016x}" == PARENT
    ((_, request),) = on.link.calls
    attempt = span_id(spans.named("attempt")[0])
    assert request.trace == {
        "traceparent": f"00-{TRACE}-{attempt:016x}-01",
        "tracestate": "vendor=1",
    }


async def test_a_trace_that_is_not_sampled_stays_so_and_is_still_passed_on() -> None:
    spans = Spans(ALWAYS_OFF)
    on = stage(spans)
    await ask(on, headers={"traceparent": TRACEPARENT})
    assert not spans.all
    ((_, request),) = on.link.calls
    assert request.trace["traceparent"].startswith(f"00-{TRACE}-")
    assert request.trace["traceparent"].endswith("-00")


@pytest.mark.parametrize(("sent", "passed"), [(TRACEPARENT, True), (None, False)])
async def test_without_an_exporter_only_the_callers_own_trace_is_passed_on(
    sent: str | None, passed: bool
) -> None:
    on = Stage()
    on.ready("a")
    await ask(on, headers={"traceparent": sent} if sent else {})
    ((_, request),) = on.link.calls
    assert request.trace == ({"traceparent": sent} if passed else {})


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00-" + "0" * 32 + f"-{PARENT}-01",
        f"00-{TRACE}-" + "0" * 16 + "-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}",
        "00-xyz",
    ],
)
async def test_a_malformed_traceparent_begins_a_trace_of_its_own(header: str) -> None:
    spans = Spans()
    assert await ask(stage(spans), headers={"traceparent": header}) == 200
    assert spans.request.parent is None
    assert trace_id(spans.request) != TRACE


async def test_two_traceparents_are_none() -> None:
    spans = Spans()
    twice = [("traceparent", TRACEPARENT), ("traceparent", TRACEPARENT)]
    assert await ask(stage(spans), headers=twice) == 200
    assert spans.request.parent is None


HEADER = st.binary(max_size=600).filter(lambda value: b"\r" not in value and b"\n" not in value)
NEARLY = st.from_regex(rb"[0-9a-f]{2}-[0-9a-f]{31,33}-[0-9a-f]{15,17}-[0-9a-fx]{2}.{0,5}")


@given(parent=HEADER | NEARLY, state=HEADER | st.from_regex(rb"([a-z@]{1,9}=[ -~]{0,9},?){0,40}"))
async def test_no_header_breaks_a_request(parent: bytes, state: bytes) -> None:
    spans = Spans()
    on = stage(spans)
    headers = [(b"traceparent", parent), (b"tracestate", state)]
    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": headers}
    sent: list[Any] = []
    body = b'{"model": "big", "messages": [{"role": "user", "content": "x"}]}'
    incoming: asyncio.Queue[Any] = asyncio.Queue()
    incoming.put_nowait({"type": "http.request", "body": body})

    async def send(message: Any) -> None:
        sent.append(message)

    await on.app()({**scope, "query_string": b"", "root_path": ""}, incoming.get, send)
    assert sent[0]["status"] == 200
    ((_, request),) = on.link.calls
    assert request.trace["traceparent"].split("-")[1] == trace_id(spans.request)


async def test_the_engines_span_is_in_the_gateways_trace_over_a_real_connection() -> None:
    spans, seen = Spans(), []

    async def generate(request: EngineRequest) -> Any:
        seen.append(request)
        yield "first"
        yield "[DONE]"

    traced = with_spans(generate, spans.tracer, pool="main", replica_id="a")
    async with pair(traced) as (listener, link):
        on = stage(spans, link=link)
        link.observe([replace(report("a", sent_s=0.0), address=listener.address)])
        await ask(on, stream=True, headers={"traceparent": TRACEPARENT})
    (engine,) = spans.named("engine")
    (attempt,) = spans.named("attempt")
    assert trace_id(engine) == TRACE
    assert engine.parent is not None
    assert engine.parent.span_id == span_id(attempt)
    assert event_names(engine) == ["first_token"]
    assert told(engine)[names.REPLICA] == "a"
    (request,) = seen
    assert request.trace["traceparent"] == f"00-{TRACE}-{span_id(engine):016x}-01"
    assert request.request_id == told(attempt)[names.ENGINE_REQUEST_ID]


async def test_the_engines_span_ends_with_a_cancelled_call() -> None:
    spans, gate = Spans(), asyncio.Event()

    async def generate(request: EngineRequest) -> Any:
        yield "first"
        await gate.wait()

    traced = with_spans(generate, spans.tracer, pool="main", replica_id="a")
    asked = EngineRequest(
        kind="chat", body={}, request_id="r", tokens=1, trace={"traceparent": TRACEPARENT}
    )
    async with pair(traced) as (listener, link):
        replies = link.call(asked, replica_id="a")
        await anext(replies)
        await replies.aclose()  # type: ignore[attr-defined]
        await until(lambda: listener.calls == 0)
    assert told(spans.named("engine")[0])[names.OUTCOME] == "cancelled"


@pytest.mark.parametrize("reply", [OUT_OF_MEMORY, None])
async def test_a_failure_in_the_engine_is_on_its_span(reply: EngineReply | None) -> None:
    spans = Spans()

    async def generate(request: EngineRequest) -> Any:
        if reply is None:
            raise RuntimeError("MARKER")
        yield reply

    traced = with_spans(generate, spans.tracer, pool="main", replica_id="a")
    asked = EngineRequest(
        kind="chat", body={}, request_id="r", tokens=1, trace={"traceparent": TRACEPARENT}
    )
    async with pair(traced) as (_, link):
        await said(link, asked)
    (span,) = spans.named("engine")
    assert span.status.status_code is StatusCode.ERROR
    assert told(span)[names.ERROR_TYPE] == ("RuntimeError" if reply is None else "500")
    assert "MARKER" not in everything(spans)


async def test_a_request_without_a_trace_has_no_span_in_the_engine() -> None:
    spans = Spans()

    async def generate(request: EngineRequest) -> Any:
        yield "[DONE]"

    async with pair(with_spans(generate, spans.tracer, pool="p", replica_id="a")) as (_, link):
        await said(link)
    assert not spans.all


def test_the_names_are_those_of_the_convention() -> None:
    known = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
    ours = {value for value in vars(names).values() if str(value).startswith("gen_ai.")}
    assert len(ours) > 5
    assert ours <= known
