"""Long prompts at the HTTP edge: who chooses, what the engine gets, and what the caller is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from autoscaler.snapshot import Tier
from serving.keys import KeyRing, hashed
from serving.long_input.policies import POLICIES
from serving.settings.config import LongInputSection
from tests.serving.fakes import FakeLink, Stage, events, whole
from tests.serving.long_prompts import WordModel, chat, filler, says

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
POLICY, CONVERSATION = "X-Shardwise-Long-Input", "X-Shardwise-Conversation"
LONG = [says("user", filler(200)), says("assistant", filler(60)), says("user", "and now?")]


class Told(FakeLink):
    """Replicas that tell their usage."""

    def __init__(self) -> None:
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}

        async def script(request: Any, replica_id: str) -> Any:
            if not request.stream:
                yield [{**whole("hi"), "usage": dict(usage)}]
                return
            if request.body.get("stream_options"):
                alone = {"name": "c", "choices": [], "usage": usage}
                yield [json.dumps(alone, separators=(",", ":"))]
            yield ["[DONE]"]

        super().__init__(script)


def stage(*, ring: KeyRing | None = None, tier: Tier = Tier.NORMAL, **settings: Any) -> Stage:
    model = WordModel()
    made = Stage(
        link=Told(),
        ring=ring,
        with_light=True,
        light_context=100,
        encode=model.encode,
        decode=model.decode,
        long_input=LongInputSection(**{"output_tokens": 20, "segment_tokens": 8} | settings),
    )
    made.ready("a", light=["l"], tier=tier)
    return made


async def ask(
    on: Stage, body: dict[str, Any], headers: dict[str, str] | None = None, *, path: str = CHAT
) -> httpx.Response:
    async with on.client() as client:
        return await client.post(path, json={"model": "big", **body}, headers=headers or {})


def sent(on: Stage) -> dict[str, Any]:
    """The body that the engine got last."""
    return on.link.calls[-1][1].body


def tokens(on: Stage) -> int:
    """Tokens of the chat prompt that the engine got last."""
    body = chat(*sent(on)["messages"], tools=sent(on).get("tools"))
    return len(on.encode(body)[0])


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def test_a_prompt_that_does_not_fit_is_refused_unless_told_otherwise() -> None:
    on = stage()
    for headers in ({}, {POLICY: "reject"}):
        response = await ask(on, {"messages": LONG}, headers)
        assert code(response) == (400, "context_length_exceeded")
        assert "maximum context length is 100 tokens" in response.json()["error"]["message"]
    assert on.link.calls == []
    assert on.value("shardwise_long_inputs_total", policy="reject") == 2


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "memory"])
async def test_the_header_chooses_and_the_answer_says_what_was_done(policy: str) -> None:
    on = stage()
    response = await ask(on, {"messages": LONG}, {POLICY: policy.upper()})
    assert response.status_code == 200
    kept = tokens(on)
    assert kept <= 80
    before = len(on.encode(chat(*LONG))[0])
    assert response.headers[POLICY] == f"{policy}; kept={kept}; cut={before - kept}"
    assert response.json()["usage"]["shardwise"] == {
        "long_input": {"policy": policy, "kept": kept, "cut": before - kept}
    }
    assert on.value("shardwise_long_inputs_total", policy=policy) == 1
    assert on.value("shardwise_long_input_cut_tokens_total", policy=policy) == before - kept
    on.assert_idle()


async def test_the_configuration_chooses_for_those_who_say_nothing() -> None:
    on = stage(policy="sliding_window")
    assert (await ask(on, {"messages": LONG})).headers[POLICY].startswith("sliding_window; ")
    assert (await ask(on, {"messages": LONG}, {POLICY: "middle_out"})).status_code == 200
    assert code(await ask(on, {"messages": LONG}, {POLICY: "reject"}))[0] == 400
    short = await ask(on, {"messages": [says("user", "hi")]})
    assert POLICY not in short.headers
    assert "shardwise" not in short.json()["usage"]


async def test_an_unknown_policy_is_told_which_there_are() -> None:
    response = await ask(stage(), {"messages": LONG}, {POLICY: "shorten"})
    assert code(response) == (400, "invalid_value")
    error = response.json()["error"]
    assert error["param"] == POLICY
    for name in ("reject", *POLICIES):
        assert name in error["message"]


async def test_a_stream_says_it_beside_its_usage_and_so_does_a_degraded_answer() -> None:
    on = stage(policy="middle_out", tier=Tier.NO_LOGPROBS)
    options = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True}
    response = await ask(on, {"messages": LONG, **options})
    usage = json.loads(events(response.text)[0])["usage"]["shardwise"]
    assert usage["degraded"] == ["logprobs-off"]
    assert usage["long_input"]["policy"] == "middle_out"


async def test_everything_else_of_the_request_stays() -> None:
    on = stage(policy="rerank")
    tools = [{"type": "function", "function": {"name": "f"}}]
    fields = {"n": 3, "tools": tools, "response_format": {"type": "json_object"}, "seed": 7}
    assert (await ask(on, {"messages": LONG, **fields, "max_tokens": 30})).status_code == 200
    assert {name: sent(on)[name] for name in fields} == fields
    assert sent(on)["max_tokens"] == 30
    assert tokens(on) <= 70
    assert sent(on)["messages"][-1] == says("user", "and now?")


async def test_an_output_that_alone_exceeds_the_context_is_still_refused() -> None:
    response = await ask(stage(policy="middle_out"), {"messages": LONG, "max_tokens": 100})
    assert code(response) == (400, "context_length_exceeded")


async def test_a_limit_below_the_context() -> None:
    on = stage(limit_tokens=40)
    body = {"messages": [says("user", filler(50))]}
    refused = await ask(on, body)
    assert code(refused) == (400, "context_length_exceeded")
    assert "at most 40 tokens" in refused.json()["error"]["message"]
    assert "has 57" in refused.json()["error"]["message"]
    assert (await ask(on, body, {POLICY: "sliding_window"})).status_code == 200
    assert tokens(on) <= 40
    over = await ask(on, {"messages": [says("user", "hi")], "max_tokens": 99})
    assert "maximum context length is 100" in over.json()["error"]["message"]


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "memory"])
async def test_plain_prompts_are_cut_as_they_came(policy: str) -> None:
    on = stage(policy=policy)
    ids = on.encode(chat(says("user", filler(150))))[0]
    for prompt in (filler(150), [filler(150), "short"], ids, [ids, ids[:3]]):
        assert (await ask(on, {"prompt": prompt}, path=TEXT)).status_code == 200
        cut = sent(on)["prompt"]
        assert type(cut) is type(prompt)
        assert [type(item) for item in cut[:2]] == [type(item) for item in prompt[:2]]


async def test_what_would_take_too_long_to_cut_is_refused() -> None:
    on = stage(policy="rerank", longest_tokens=250)
    assert (await ask(on, {"messages": [says("user", filler(200))]})).status_code == 200
    for headers in ({}, {POLICY: "memory", CONVERSATION: "c"}):
        refused = await ask(on, {"messages": [says("user", filler(300))]}, headers)
        assert code(refused) == (400, "context_length_exceeded")
        assert "at most 250" in refused.json()["error"]["message"]


async def test_a_key_is_charged_for_the_prompt_that_is_sent(tmp_path: Path) -> None:
    on = stage(policy="middle_out", ring=ring(tmp_path, tokens_per_minute=120))
    headers = {"Authorization": "Bearer sw-one"}
    response = await ask(on, {"messages": LONG, "max_tokens": 20}, headers)
    assert response.status_code == 200, "as it came it would be over the key's rate"
    assert len(on.encode(chat(*LONG))[0]) > 120


async def test_a_cut_prompt_may_still_go_to_the_lighter_model() -> None:
    on = stage(policy="middle_out", tier=Tier.LIGHT_MODEL)
    response = await ask(on, {"messages": LONG})
    assert "light-model" in response.headers["X-Shardwise-Degraded"]
    assert sent(on)["model"] == "small"


@pytest.mark.parametrize("words", [120, 5000])
async def test_bodies_small_and_large_are_cut(words: int) -> None:
    on = stage(policy="rerank")
    response = await ask(on, {"messages": [says("user", filler(words))]})
    assert response.status_code == 200
    assert tokens(on) <= 80


async def test_tokenize_counts_the_whole_prompt() -> None:
    async with stage(policy="middle_out").client() as client:
        answer = await client.post("/tokenize", json={"messages": LONG})
    assert answer.json()["count"] > 200


# Memory


def ring(tmp_path: Path, **rights: Any) -> KeyRing:
    path = tmp_path / "keys.yaml"
    keys = [{"name": name, "sha256": hashed(f"sw-{name}"), **rights} for name in ("one", "two")]
    path.write_text(yaml.safe_dump({"keys": keys}), encoding="utf-8")
    return KeyRing(path)


FACT = "The code of the safe is 4711."
QUESTION = "What is the code of the safe?"


async def test_a_turn_that_is_not_sent_again_is_remembered() -> None:
    on = stage()
    headers = {POLICY: "memory", CONVERSATION: "c1"}
    first = await ask(on, {"messages": [says("user", FACT)]}, headers)
    assert first.status_code == 200
    assert POLICY not in first.headers
    await ask(on, {"messages": [says("user", filler(40))]}, headers)
    answer = await ask(on, {"messages": [says("user", QUESTION)]}, headers)
    told = sent(on)["messages"][-1]["content"]
    assert FACT in told
    assert told.endswith(QUESTION)
    assert tokens(on) <= 100
    recalled = answer.json()["usage"]["shardwise"]["long_input"]["recalled"]
    assert f"cut=0; recalled={recalled}" in answer.headers[POLICY]
    other = await ask(on, {"messages": [says("user", QUESTION)]}, headers | {CONVERSATION: "c2"})
    assert other.status_code == 200
    assert FACT not in sent(on)["messages"][-1]["content"]


async def test_a_conversation_that_outgrows_the_context_keeps_what_matters() -> None:
    on = stage(policy="memory")
    turns = [says("user", FACT), says("assistant", "noted")]
    for at in range(6):
        turns += [says("user", filler(30, start=60 * at)), says("assistant", "aha")]
        response = await ask(on, {"messages": turns[:-1]}, {CONVERSATION: "c"})
        assert response.status_code == 200
    turns.append(says("user", QUESTION))
    assert (await ask(on, {"messages": turns}, {CONVERSATION: "c"})).status_code == 200
    assert FACT in sent(on)["messages"][-1]["content"]
    assert tokens(on) <= 80


async def test_another_keys_conversation_of_the_same_name_is_another_one(tmp_path: Path) -> None:
    on = stage(ring=ring(tmp_path))
    for key, message, knows in (
        ("one", FACT, False),
        ("two", QUESTION, False),
        ("one", QUESTION, True),
    ):
        headers = {POLICY: "memory", CONVERSATION: "c", "Authorization": f"Bearer sw-{key}"}
        assert (await ask(on, {"messages": [says("user", message)]}, headers)).status_code == 200
        assert ("Earlier" in sent(on)["messages"][-1]["content"]) == knows


async def test_memory_is_forgotten_in_time() -> None:
    on = stage(memory_ttl_s=60)
    headers = {POLICY: "memory", CONVERSATION: "c"}
    await ask(on, {"messages": [says("user", FACT)]}, headers)
    on.clock.now_s += 61
    on.ready("a", light=["l"])
    await ask(on, {"messages": [says("user", QUESTION)]}, headers)
    assert sent(on)["messages"][-1]["content"] == QUESTION


async def test_memory_needs_to_know_the_conversation() -> None:
    short = {"messages": [says("user", "hi")]}
    for on, body, headers in (
        (stage(), short, {POLICY: "memory"}),
        (stage(policy="memory"), {"messages": LONG}, {}),
    ):
        response = await ask(on, body, headers)
        assert code(response) == (400, "missing_parameter")
        assert response.json()["error"]["param"] == CONVERSATION
    assert (await ask(stage(policy="memory"), short)).status_code == 200


@pytest.mark.parametrize("name", ["", "x" * 129])
async def test_a_conversations_name_is_bounded(name: str) -> None:
    response = await ask(stage(), {"messages": LONG}, {POLICY: "memory", CONVERSATION: name})
    assert code(response) == (400, "invalid_value")


async def test_memory_takes_one_prompt() -> None:
    headers = {POLICY: "memory", CONVERSATION: "c"}
    response = await ask(stage(), {"prompt": ["a", "b"]}, headers, path=TEXT)
    assert code(response) == (400, "invalid_value")
    assert "has 2" in response.json()["error"]["message"]
