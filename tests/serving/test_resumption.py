"""A stream goes on when its replica is lost: nothing missing, nothing twice, its end in place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from serving.messages import EngineReply, EngineRequest
from serving.replica_link import LinkError
from serving.resumption import can_resume
from serving.settings.config import LimitsSection
from tests.serving.fakes import Caller, FakeLink, Stage, chat, decode_words, events

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PROMPT = [11, 12, 13]
LIMIT = 8


def word(token: int) -> str:
    """The text a token adds; a half of a character adds nothing until its other half is there."""
    return decode_words([token])


class Model:
    """A greedy engine: the next token follows from those before. Speaks as vLLM does.

    Each replica is lost after so many tokens as `lost` says, in turn; then none is. `step`: tokens
    in an event. `end`: the token count at which it stops by itself. Text in which a stop string may
    begin is held back, and its ids are told all the same.
    """

    def __init__(self, *lost: int, step: int = 1, end: int = 99, halves: bool = False) -> None:
        self.lost, self.step, self.end, self.halves = list(lost), step, end, halves
        self.seen: list[EngineRequest] = []

    def next(self, tokens: list[int]) -> int:
        made = 100 + sum(tokens) % 900
        if self.halves:  # characters of two tokens: odd, then even, above 1000
            count = len(tokens) - len(PROMPT)
            return 1001 + 2 * count if count % 2 == 0 else 1002 + 2 * count
        return made

    async def script(
        self, request: EngineRequest, replica_id: str
    ) -> AsyncIterator[list[EngineReply]]:
        del replica_id
        self.seen.append(request)
        body, number = request.body, len(self.seen)
        prompt = list(body["prompt"]) if isinstance(body.get("prompt"), list) else list(PROMPT)
        left = self.lost.pop(0) if self.lost else 10**6
        most = body.get("max_tokens") or LIMIT
        same = {"id": f"id-{number}", "created": number, "model": body["model"]}
        told: dict[str, Any] = {"prompt_token_ids": prompt}
        if request.kind == "chat":
            delta = {"role": "assistant", "content": ""}
            first = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
            yield [dump({**same, "object": "chat.completion.chunk", "choices": [first], **told})]
            told = {}
        tokens, made = list(prompt), 0
        stop, said, sent = body.get("stop") or [], "", 0
        while made < most and len(tokens) < len(PROMPT) + self.end:
            ids = []
            for _ in range(min(self.step, most - made, len(PROMPT) + self.end - len(tokens))):
                ids.append(self.next(tokens))
                tokens.append(ids[-1])
            made += len(ids)
            if made > left:
                raise LinkError("lost")
            over = made >= most or len(tokens) >= len(PROMPT) + self.end
            reason = ("length" if made >= most else "stop") if over else None
            said += "".join(word(token) for token in ids).replace("\ufffd", "")
            places = [said.find(text) for text in stop if text in said]
            if places:
                said, over, reason = said[: min(places)], True, "stop"
            held = 0 if over else max(map(len, stop), default=1) - 1
            text = said[sent : max(sent, len(said) - held)]
            sent += len(text)
            choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
            if request.kind == "chat":
                choice |= {"delta": {"content": text} if text or over else {}}
                kind = "chat.completion.chunk"
            else:
                choice |= {"text": text, **told}
                kind, told = "text_completion", {}
            choice["token_ids"] = ids if body.get("return_token_ids") else None
            yield [dump({**same, "object": kind, "choices": [choice]})]
            if made == left:
                raise LinkError("lost")
            if over:
                break
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {
                "prompt_tokens": len(prompt),
                "completion_tokens": made,
                "total_tokens": len(prompt) + made,
            }
            yield [dump({**same, "object": "x", "choices": [], "usage": usage})]
        yield ["[DONE]"]


def dump(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"))


async def streamed(model: Model, path: str = CHAT, *, resumes: int = 3, **fields: Any) -> Any:
    """What the caller sees: the events, or raises AssertionError."""
    stage = Stage(
        link=FakeLink(model.script), limits=LimitsSection(resumes=resumes, queue_wait_s=2)
    )
    stage.ready(*"abcdef")
    body = chat(stream=True, **fields)
    if path == TEXT:
        del body["messages"]
        body["prompt"] = PROMPT
    async with stage.client() as client:
        response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    stage.assert_idle()
    return stage, events(response.text)


def text_of(payloads: list[str]) -> str:
    text = ""
    for payload in payloads:
        for choice in json.loads(payload).get("choices", []) if payload != "[DONE]" else []:
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return text


def reason_of(payloads: list[str]) -> list[str]:
    found = [json.loads(p)["choices"] for p in payloads if p != "[DONE]" and '"choices":[{' in p]
    return [c[0]["finish_reason"] for c in found if c[0]["finish_reason"] is not None]


@settings(deadline=None, max_examples=60)
@given(
    path=st.sampled_from([CHAT, TEXT]),
    lost=st.lists(st.integers(1, 8), max_size=3),
    step=st.integers(1, 3),
    limit=st.integers(1, 12),
    end=st.integers(1, 12),
    halves=st.booleans(),
    usage=st.booleans(),
)
async def test_a_stream_that_breaks_says_what_an_undisturbed_one_says(
    *, path: str, lost: list[int], step: int, limit: int, end: int, halves: bool, usage: bool
) -> None:
    # Three replicas lost before anything was said: that is refused, and rightly so.
    assume(sum(step > tokens for tokens in lost) < 3)
    options = {"stream_options": {"include_usage": True}} if usage else {}
    fields = {"max_tokens": limit, **options}
    _, whole = await streamed(Model(step=step, end=end, halves=halves), path, **fields)
    broken = Model(*lost, step=step, end=end, halves=halves)
    stage, told = await streamed(broken, path, **fields)
    assert text_of(told) == text_of(whole)
    assert reason_of(told) == reason_of(whole)
    assert told[-1] == "[DONE]"
    assert told.count("[DONE]") == 1
    ids = {json.loads(p)["id"] for p in told[:-1]}
    assert len(ids) == 1
    kinds = {json.loads(p)["object"] for p in told[:-1] if '"choices":[]' not in p}
    assert kinds == {"chat.completion.chunk" if path == CHAT else "text_completion"}
    assert 'token_ids":[' not in "".join(told)
    if usage:
        of = [json.loads(p)["usage"] for p in (told[-2], whole[-2])]
        assert of[0] == of[1]
    assert stage.value("shardwise_broken_streams_total", pool="main") == 0


@settings(deadline=None, max_examples=150)
@given(
    path=st.sampled_from([CHAT, TEXT]),
    lost=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    step=st.integers(1, 3),
    limit=st.integers(2, 12),
    place=st.floats(0, 1),
    length=st.integers(1, 9),
    never=st.booleans(),
)
async def test_stop_strings_hold_across_a_break(
    *, path: str, lost: list[int], step: int, limit: int, place: float, length: int, never: bool
) -> None:
    assume(sum(step > tokens for tokens in lost) < 3)
    _, plain = await streamed(Model(step=step), path, max_tokens=limit)
    begin = int(place * len(text_of(plain)))
    stop = text_of(plain)[begin : begin + length]
    fields = {
        "max_tokens": limit,
        "temperature": 0,
        "stop": ["x" * length if never or not stop else stop],
        "stream_options": {"include_usage": True},
    }
    _, whole = await streamed(Model(step=step), path, **fields)
    stage, told = await streamed(Model(*lost, step=step), path, **fields)
    assert text_of(told) == text_of(whole)
    assert reason_of(told) == reason_of(whole)
    if step == 1:  # else tokens behind the stop string count if they come in one event with it
        assert json.loads(told[-2])["usage"] == json.loads(whole[-2])["usage"]
    assert stage.value("shardwise_broken_streams_total", pool="main") == 0


async def test_a_sampled_answer_with_stop_strings_goes_on_only_from_the_end_of_a_token() -> None:
    for stop, broken in (("xxx", 1), ("x", 0)):  # two characters are held back, or none
        stage, _ = await streamed(Model(3), max_tokens=6, stop=[stop], temperature=1)
        assert stage.value("shardwise_broken_streams_total", pool="main") == broken


async def test_the_next_replica_is_asked_for_what_is_left() -> None:
    model = Model(5)
    stage, told = await streamed(
        model, max_tokens=20, min_tokens=7, temperature=0, seed=4, user="me"
    )
    again = model.seen[1]
    assert again.kind == "completions"
    assert again.body["prompt"][:3] == PROMPT
    assert len(again.body["prompt"]) == 3 + 5
    assert again.body["max_tokens"] == 15
    assert again.body["min_tokens"] == 2
    assert (again.body["temperature"], again.body["seed"]) == (0, 4)
    assert stage.value("shardwise_resumed_streams_total", pool="main") == 1
    assert len(told) == 1 + 20 + 1
    replicas = [replica for replica, _ in stage.link.calls]
    assert len(set(replicas)) == 2


async def test_without_a_limit_the_context_is_the_limit() -> None:
    model = Model(5, end=20)
    _, told = await streamed(model)
    assert model.seen[1].body["max_tokens"] == 100 - 3 - 5
    assert reason_of(told) == ["length"] or reason_of(told) == ["stop"]


async def test_a_stream_is_taken_up_so_often_and_then_ends_with_an_error() -> None:
    model = Model(2, 2, 2, 2, 2)
    stage, told = await streamed(model, resumes=2, max_tokens=50)
    assert "error" in json.loads(told[-1])
    assert len(model.seen) == 3
    assert stage.value("shardwise_broken_streams_total", pool="main") == 1
    assert text_of(told[:-1]) == text_of((await streamed(Model(), max_tokens=6))[1])


async def test_none_is_taken_up_where_it_is_switched_off() -> None:
    model = Model(2)
    _, told = await streamed(model, resumes=0)
    assert "error" in json.loads(told[-1])
    assert "return_token_ids" not in model.seen[0].body


async def test_a_stream_whose_end_alone_was_lost_is_ended_here() -> None:
    model = Model(LIMIT)
    _, told = await streamed(model, max_tokens=LIMIT, stream_options={"include_usage": True})
    assert len(model.seen) == 1
    assert reason_of(told) == ["length"]
    assert json.loads(told[-2])["usage"]["completion_tokens"] == LIMIT
    assert told[-1] == "[DONE]"


async def test_a_caller_that_leaves_during_the_wait_for_another_replica_leaves_nothing() -> None:
    model = Model(3)
    stage = Stage(link=FakeLink(model.script))
    stage.ready("a")
    caller = Caller(stage.app(), chat(stream=True, max_tokens=20))
    await caller.saw("w")
    async with asyncio.timeout(5):
        while stage.dispatcher.load().queued_requests == 0:
            await asyncio.sleep(0.01)
    caller.leave()
    await caller.task
    stage.assert_idle()


async def test_a_stream_goes_on_when_a_replica_comes_back() -> None:
    model = Model(3)
    stage = Stage(link=FakeLink(model.script))
    stage.ready("a")
    caller = Caller(stage.app(), chat(stream=True, max_tokens=20))
    async with asyncio.timeout(5):
        while stage.dispatcher.load().queued_requests == 0:
            await asyncio.sleep(0.01)
        stage.clock.now_s += 5
        stage.ready("b")
        await caller.task
    assert text_of(events(caller.text)) == text_of((await streamed(Model(), max_tokens=20))[1])
    stage.assert_idle()


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"tools": [{}]},
        {"response_format": {"type": "json_object"}},
        {"logprobs": True},
        {"logprobs": 0},
        {"stream": False},
        {"echo": True},
        {"return_token_ids": True},
        {"prompt": ["a", "b"]},
        {"prompt": [[1], [2]]},
        {"stream_options": {"continuous_usage_stats": True}},
    ],
)
def test_what_cannot_be_taken_up(fields: dict[str, Any]) -> None:
    plain = {"stream": True, "model": "m", "logprobs": None}
    for kept in (
        {},
        {"n": 1},
        {"stop": []},
        {"logprobs": False},
        {"prompt": [1, 2]},
        {"prompt": "a"},
    ):
        assert can_resume(EngineRequest(kind="chat", body=plain | kept, request_id="", tokens=1))
    asked = EngineRequest(kind="chat", body=plain | fields, request_id="", tokens=1.0)
    assert not can_resume(asked)
