"""What callers get, with the clients that people have, and when there are too many of them.

What a model of 135M parameters answers is beside the point: forms are what is looked at, and
contents where the engine is made to keep to them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from serving.bundled import bundled_path
from tests.live.instance import LiveInstance
from tests.live.open_load import Ask, closed, overtaken, poisson
from tests.live.plain_instance import MODEL, plain_instance

pytestmark = [pytest.mark.live, pytest.mark.timeout(480)]

SLOTS = 4
MOST_QUEUED = 12
QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "big": {"type": "boolean"}},
    "required": ["city", "big"],
    "additionalProperties": False,
}
LOOK_UP: Any = {
    "type": "function",
    "function": {"name": "look_up", "parameters": PLACE, "strict": True},
}
JSON_SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE}}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveInstance]:
    tools = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    limits = {"max_queued": MOST_QUEUED, "queue_wait_s": 20.0}
    home = tmp_path_factory.mktemp("home")
    with plain_instance(home, slots=SLOTS, engine_args=tools, limits=limits) as instance:
        yield instance


@pytest.fixture
def client(service: LiveInstance) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    asked = {"model": MODEL, "messages": QUESTION, "max_tokens": 12, "temperature": 0, **fields}
    return client.chat.completions.create(**asked)


def test_a_seed_says_the_same_again(client: openai.OpenAI) -> None:
    first, again, other = (
        chat(client, seed=seed, temperature=1.5).choices[0].message.content for seed in (7, 7, 8)
    )
    assert first == again != other


def test_several_choices_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = chat(client, n=3, temperature=1)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert whole.usage.completion_tokens > 12
    streamed = chat(client, n=2, temperature=1, stream=True)
    ended = {choice.index for chunk in streamed for choice in chunk.choices if choice.finish_reason}
    assert ended == {0, 1}


def test_log_probabilities_of_every_token(client: openai.OpenAI) -> None:
    answer = chat(client, logprobs=True, top_logprobs=2)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == answer.usage.completion_tokens
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in tokens)
    streamed = chat(client, logprobs=True, stream=True)
    told = [chunk.choices[0].logprobs for chunk in streamed if chunk.choices]
    assert sum(len(one.content) for one in told if one) == len(tokens)
    text = client.completions.create(model=MODEL, prompt="One two", max_tokens=3, logprobs=2)
    assert text.choices[0].logprobs is not None
    assert len(text.choices[0].logprobs.tokens or []) == 3


def test_a_stop_string_ends_the_answer_before_it(client: openai.OpenAI) -> None:
    whole = chat(client).choices[0].message.content
    stopped = chat(client, stop=[" Paris"]).choices[0]
    assert (stopped.finish_reason, stopped.message.content) == ("stop", whole.split(" Paris")[0])


def test_usage_is_told_where_it_is_asked_for(client: openai.OpenAI) -> None:
    whole = chat(client).usage
    assert whole.total_tokens == whole.prompt_tokens + whole.completion_tokens
    *_, last = chat(client, stream=True, stream_options={"include_usage": True})
    assert (last.choices, last.usage.total_tokens) == ([], whole.total_tokens)
    assert all(chunk.usage is None for chunk in chat(client, stream=True))


def test_a_request_has_an_id_the_callers_own_or_a_new_one(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response
    asked: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 1}
    mine = raw.create(**asked, extra_headers={"X-Request-Id": "mine-1"})
    assert mine.headers["X-Request-Id"] == "mine-1"
    others = {raw.create(**asked).headers["X-Request-Id"] for _ in range(2)}
    assert len(others) == 2


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "look_up"}}]
)
def test_a_tool_that_must_be_called_is_called(client: openai.OpenAI, choice: Any) -> None:
    asked = {"tools": [LOOK_UP], "tool_choice": choice, "max_tokens": 200}
    (call,) = chat(client, **asked).choices[0].message.tool_calls
    assert call.function.name == "look_up"
    jsonschema.validate(json.loads(call.function.arguments), PLACE)
    chunks = [chunk.choices[0].delta for chunk in chat(client, **asked, stream=True)]
    calls = [call for delta in chunks for call in delta.tool_calls or []]
    assert calls[0].function.name == "look_up"
    spelled = "".join(call.function.arguments or "" for call in calls)
    jsonschema.validate(json.loads(spelled), PLACE)


def test_a_tool_may_be_left_alone(client: openai.OpenAI) -> None:
    for choice in ("auto", "none"):
        answer = chat(client, tools=[LOOK_UP], tool_choice=choice).choices[0]
        assert answer.message.content or answer.message.tool_calls
    result: list[ChatCompletionMessageParam] = [
        *QUESTION,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call-1",
                    "type": "function",
                    "function": {"name": "look_up", "arguments": '{"city": "Paris", "big": true}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call-1", "content": "Paris"},
    ]
    assert chat(client, messages=result, tools=[LOOK_UP]).choices[0].finish_reason


def test_json_is_json_and_of_the_schema(client: openai.OpenAI) -> None:
    answer = chat(client, response_format=JSON_SCHEMA, max_tokens=200).choices[0]
    jsonschema.validate(json.loads(answer.message.content), PLACE)
    streamed = chat(client, response_format=JSON_SCHEMA, max_tokens=200, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    jsonschema.validate(json.loads(text), PLACE)


def test_langchain_asks_streams_and_is_held_to_forms(service: LiveInstance) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        model=MODEL, base_url=f"{service.url}/v1", api_key="none", temperature=0, max_tokens=200
    )
    whole = model.invoke("What is the capital of France?")
    assert "Paris" in whole.content
    assert whole.usage_metadata["output_tokens"] > 0
    chunks = list(model.stream("What is the capital of France?"))
    assert "".join(chunk.content for chunk in chunks) == whole.content
    schema = {"title": "place", **PLACE}
    place = model.with_structured_output(schema, method="json_schema").invoke("A city?")
    jsonschema.validate(place, PLACE)
    bound = model.bind_tools([LOOK_UP], tool_choice="look_up").invoke("Look Paris up.")
    jsonschema.validate(bound.tool_calls[0]["args"], PLACE)


# `vllm bench serve`: the command itself looks its version up under a name the CPU build has not.
BENCH = """
import sys
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
for backend, endpoint in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
    own = ["--backend", backend, "--endpoint", endpoint, "--result-filename", backend + ".json"]
    main(parser.parse_args([*sys.argv[1:], *own]))
"""


def test_vllms_own_benchmark_runs_unchanged(service: LiveInstance, tmp_path: Path) -> None:
    run = subprocess.run(
        [
            *(sys.executable, "-c", BENCH, "--base-url", service.url),
            *("--model", MODEL, "--tokenizer", str(bundled_path(MODEL))),
            *("--dataset-name", "random", "--random-input-len", "24"),
            *("--random-output-len", "8", "--num-prompts", "6", "--ignore-eos"),
            *("--save-result", "--result-dir", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for backend in ("openai", "openai-chat"):
        result = json.loads((tmp_path / f"{backend}.json").read_text())
        assert (result["completed"], result["failed"]) == (6, 0)
        assert result["total_output_tokens"] == 6 * 8
        # A chat has the tokens of its template besides.
        extra = result["total_input_tokens"] - 6 * 24
        assert extra == 0 if backend == "openai" else extra > 0


async def test_twice_the_load_is_borne_in_order(service: LiveInstance) -> None:
    """Nobody hangs, nobody is cut short, who is refused is told when to come, and VIPs pass."""
    ask = Ask(model=MODEL, output=16)
    async with httpx.AsyncClient(
        base_url=service.url, timeout=120.0, limits=httpx.Limits(max_connections=None)
    ) as client:
        full = await closed(client, ask, width=2 * SLOTS, duration_s=6.0)
        bears = len(full) / max(one.came_s + one.total_s for one in full)
        seen = await poisson(client, ask, rate=2 * bears, duration_s=20.0, vip_share=0.1)
    vips = [one for one in seen if one.priority == "vip"]
    assert {one.status for one in full} == {200}
    assert {one.status for one in vips} == {200}
    assert {one.status for one in seen} == {200, 429}, "too few came to be too many"
    for one in seen:
        if one.status == 429:
            assert int(one.retry_after or 0) >= 1
        else:
            assert one.ended == "[DONE]"
    assert sum(overtaken(one, seen) > 0 for one in vips) > len(vips) / 2
    assert any(one.status == 200 and one.priority == "standard" for one in seen[len(seen) // 2 :])
    for gauge in ("shardwise_queued_requests", "shardwise_in_flight_tokens"):
        assert service.metric(gauge) == 0
