import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from serving.errors import ApiError
from serving.requests import BodyKind, ChatBody, CompletionBody, parse_body

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


def refusal(data: object, kind: BodyKind = ChatBody) -> ApiError:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    with pytest.raises(ApiError) as caught:
        parse_body(raw, kind)
    assert caught.value.status == 400
    assert caught.value.body()["error"]["type"] == "invalid_request_error"
    return caught.value


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe{}",
        b'{"model": "\xc3("}',
        b'{"model": "\\ud800"}',
        b"[" * 100_000,
        b'{"model": "m", "temperature": NaN}',
    ],
)
def test_what_is_no_json_object_in_utf8_is_refused(raw: bytes) -> None:
    error = refusal(raw)
    assert error.code in ("invalid_json", "missing_parameter", "invalid_value")


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"model": None}, "model", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "hi"}, "messages", "invalid_value"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role", "invalid_value"),
        ({"messages": [{"content": "x"}]}, "messages.0.role", "missing_parameter"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content.0.type",
            "invalid_value",
        ),
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"temperature": "0.5"}, "temperature", "invalid_value"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": True}, "n", "invalid_value"),
        ({"n": 1.5}, "n", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_value"),
        ({"stop": 5}, "stop", "invalid_value"),
        ({"stop": ["a", 5]}, "stop.1", "invalid_value"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_token": 5}, "max_token", "unknown_parameter"),
        ({"a[b]": 5}, "a[b]", "unknown_parameter"),
        ({"str": 5}, "str", "unknown_parameter"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", None),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"stream_options": {"x": 1}, "stream": True}, "stream_options.x", "unknown_parameter"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"tools": []}, "tools", "invalid_value"),
        ({"tool_choice": "auto"}, "tool_choice", "invalid_value"),
        ({"logit_bias": {"5": "much"}}, "logit_bias.5", "invalid_value"),
    ],
)
def test_a_bad_chat_field_is_named(change: dict, param: str, code: str | None) -> None:
    error = refusal({**CHAT, **change})
    assert error.param == param
    assert param in error.message
    assert code is None or error.code == code


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [0] * 1000},
        {"messages": [{"role": "user", "content": [0] * 1000}]},
        {"stop": [0] * 1000},
        {"tools": [0] * 1000},
        {"logit_bias": {str(number): "" for number in range(1000)}},
        {"stop_token_ids": [-1] * 1000},
        {f"field {number}": 0 for number in range(1000)},
        {"stream_options": {f"field {number}": 0 for number in range(1000)}},
    ],
)
def test_a_thousand_mistakes_are_kept_as_few(change: dict) -> None:
    cause = refusal({**CHAT, **change}).__cause__
    assert isinstance(cause, ValidationError)
    assert cause.error_count() <= 2  # one for each type the field may have


def test_as_many_prompts_as_openai_takes() -> None:
    parse_body(json.dumps({**TEXT, "prompt": ["a"] * 2048}).encode(), CompletionBody)
    error = refusal({**TEXT, "prompt": ["a"] * 2049}, CompletionBody)
    assert error.param == "prompt"
    assert "2048" in error.message


def test_an_error_quotes_no_more_than_is_readable() -> None:
    for change in ({"x" * 9999: 1}, {"seed": "x" * 9999}, {"logit_bias": {"x" * 9999: ""}}):
        assert len(refusal({**CHAT, **change}).message) < 400


@pytest.mark.parametrize("field", ["model", "messages"])
def test_a_missing_field_is_named(field: str) -> None:
    error = refusal({name: value for name, value in CHAT.items() if name != field})
    assert (error.param, error.code) == (field, "missing_parameter")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": 5}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt.1"),
        ({"prompt": [-1]}, "prompt.0"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": True}, "logprobs"),
        ({"messages": []}, "messages"),
        ({"best_of": 2}, "best_of"),
    ],
)
def test_a_bad_completion_field_is_named(change: dict, param: str) -> None:
    assert refusal({**TEXT, **change}, CompletionBody).param == param


@pytest.mark.parametrize("prompt", ["text", ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_every_kind_of_prompt_is_taken(prompt: object) -> None:
    body = parse_body(json.dumps({**TEXT, "prompt": prompt}).encode(), CompletionBody)
    assert isinstance(body, CompletionBody)
    assert body.prompt == prompt


def test_a_message_may_have_parts_null_content_and_fields_of_its_own() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "ada"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]
    body = parse_body(json.dumps({**CHAT, "messages": messages}).encode(), ChatBody)
    assert body.model_dump(exclude_unset=True)["messages"] == messages


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(refusal({**CHAT, "temperature": "x" * 10_000}).message) < 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    data=st.dictionaries(
        st.sampled_from([*ChatBody.model_fields, *CompletionBody.model_fields, "other"]), JSON
    ),
    kind=st.sampled_from([ChatBody, CompletionBody]),
)
def test_any_body_is_taken_or_refused_with_its_field(data: dict, kind: BodyKind) -> None:
    try:
        parse_body(json.dumps(data).encode("utf-8", "surrogatepass"), kind)
    except ApiError as error:
        assert error.status == 400
        assert error.param or error.code == "invalid_json"
        json.dumps(error.body())


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_any_bytes_are_refused_cleanly(raw: bytes) -> None:
    assert refusal(raw).code in ("invalid_json", "missing_parameter", "unknown_parameter")
