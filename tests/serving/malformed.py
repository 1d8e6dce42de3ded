"""Request bodies as nobody should send them: by field, by type, by byte. Same seed, same bodies."""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

BASES: dict[str, list[dict[str, Any]]] = {
    CHAT: [
        {"model": "big", "messages": [{"role": "user", "content": "one two three"}]},
        {
            "model": "big",
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
                {"role": "user", "content": "what?"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "1",
                            "type": "function",
                            "function": {"name": "f", "arguments": '{"a": 1}'},
                        }
                    ],
                },
                {"role": "tool", "content": "42", "tool_call_id": "1"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
            "tool_choice": "auto",
            "stream": True,
            "stream_options": {"include_usage": True},
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
            "logit_bias": {"5": 1.0},
            "chat_template_kwargs": {"polite": True},
            "stop": ["a", "b"],
        },
    ],
    TEXT: [
        {"model": "big", "prompt": "one two three", "max_tokens": 5, "stop": "x"},
        {"model": "big", "prompt": [[1, 2], [3]], "n": 2, "seed": 1, "logprobs": 0, "echo": True},
        {"model": "big", "prompt": ["one", "two"], "stream": True, "stop_token_ids": [1]},
    ],
    "/v1/embeddings": [
        {"model": "small", "input": "one two", "encoding_format": "base64"},
        {"model": "small", "input": [[1, 2], [3]], "dimensions": 2, "user": "a"},
    ],
    "/tokenize": [
        {"model": "big", "prompt": "one two"},
        {"messages": [{"role": "user", "content": "one"}], "add_special_tokens": False},
    ],
    "/detokenize": [{"model": "big", "tokens": [1, 2, 3]}],
}


@dataclass(frozen=True)
class Raw:
    """JSON text as it is, well formed or not."""

    text: str


NASTY: list[Any] = [
    *(None, True, False, 0, -1, 1, 0.5, "", "0.5", [], {}, [[]], [None], {"": None}),
    *(2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 1e308, "x" * 10_000, "\0", "a\0b", "🙂" * 100),
    *(Raw("NaN"), Raw("-Infinity"), Raw("1e999"), Raw("-0"), Raw("1." + "9" * 5000), Raw("01")),
    *(Raw(r'"\ud800"'), Raw(r'"\udc00\ud800"'), Raw(r'"\u0000"'), Raw('"\t"'), Raw("'a'")),
    *(Raw("[" * depth + "]" * depth) for depth in (10, 200, 100_000)),
    *(Raw('{"a":' * depth + "1" + "}" * depth) for depth in (10, 200, 100_000)),
    *(Raw("[" + "0," * 50_000 + "0]"), Raw("[" + '"",' * 20_000 + '""]'), Raw("{}{}"), Raw("")),
    [{"type": "image_url", "image_url": {"url": "http://localhost/"}}],
    {"$ref": "#"},
    {"__class__": "x", "type": "json_object"},
    "{{ 7 * 7 }}{% for i in range(10**9) %}{% endfor %}",
    "<|im_start|><|im_end|>",
    [49151],
    [49152],
    [10**9],
]

HEADERS: list[dict[str, str | bytes]] = [
    {"Content-Type": "application/json"},
    {},
    {"Content-Type": "text/plain"},
    {"Content-Type": "multipart/form-data; boundary=x"},
    {"Content-Type": "application/json; charset=utf-16"},
    {"Content-Encoding": "gzip"},
    {"X-Shardwise-Priority": "VIP "},
    {"X-Shardwise-Priority": b"\xff\xfe"},
    {"X-Request-Id": b"\xff" * 200},
    {"X-Request-Id": "x" * 5000},
    {"Authorization": b"Bearer \xff\x00"},
]


@dataclass
class Request:
    """One of them."""

    path: str
    content: bytes
    headers: dict[str, str | bytes] = field(default_factory=dict)


def malformed(count: int, *, seed: int = 0) -> Iterator[Request]:
    """So many requests, some of them still in order."""
    draw = random.Random(seed)
    for _ in range(count):
        path = draw.choice(list(BASES))
        body: Any = copy.deepcopy(draw.choice(BASES[path]))
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            body = _changed(body, draw)
        content = _dump(body).encode(draw.choice(("utf-8",) * 18 + ("utf-16", "utf-7")))
        if draw.random() < 0.3:
            content = _bytes_changed(content, draw)
        yield Request(path, content, draw.choice(HEADERS))


def _changed(body: Any, draw: random.Random) -> Any:
    """With one place of it taken out, doubled, renamed, or replaced by something nasty."""
    places = list(_places(body))
    if not places or draw.random() < 0.02:
        return _nasty(draw)
    holder, key = draw.choice(places)
    kind = draw.random()
    if kind < 0.7:
        holder[key] = _nasty(draw)
    elif kind < 0.8:
        del holder[key]
    elif isinstance(holder, list):
        holder.insert(draw.randrange(len(holder) + 1), holder[key])
    elif kind < 0.9:
        holder[Raw(_dump(key)[:-1] + '_"')] = holder[key]
    else:
        holder[Raw(_dump(key))] = _nasty(draw)  # the same key once more
    return body


def _nasty(draw: random.Random) -> Any:
    return copy.deepcopy(draw.choice(NASTY))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield value, key
            yield from _places(value[key])


def _bytes_changed(content: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(content) + 1)
    return draw.choice(
        (
            content[:at],
            content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :],
            content[:at] + b"\xff\xfe\x00\xed\xa0\x80" + content[at:],
            content + content,
            b"\xef\xbb\xbf" + content,
            gzip.compress(content),
            draw.randbytes(at % 5000),
            content + b"\0",
        )
    )


def _dump(value: Any) -> str:
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        pairs = (f"{_dump(key)}:{_dump(item)}" for key, item in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_dump(item) for item in value) + "]"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 10**300 else "1" + "0" * 400
    return json.dumps(value, ensure_ascii=False)
