"""/tokenize and /detokenize, and that they count as admission does."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.serving.fakes import Stage

MESSAGES = [{"role": "user", "content": "one two three"}]


async def post(path: str, body: Any, stage: Stage | None = None) -> httpx.Response:
    async with (stage or Stage(with_light=True)).client() as client:
        return await client.post(path, json=body)


async def test_a_prompt_and_messages() -> None:
    for body in ({"prompt": "a b c"}, {"messages": MESSAGES, "model": "small"}):
        answer = (await post("/tokenize", body)).json()
        assert answer == {"count": 3, "max_model_len": 100, "tokens": [0, 1, 2]}


async def test_tokens_back_to_text() -> None:
    assert (await post("/detokenize", {"tokens": [5, 6]})).json() == {"prompt": "w5w6"}
    assert (await post("/detokenize", {"tokens": []})).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/tokenize", {}, 400, "invalid_value"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, 400, "invalid_value"),
        ("/tokenize", {"prompt": 5}, 400, "invalid_value"),
        ("/tokenize", {"prompt": "a", "promt": 1}, 400, "unknown_parameter"),
        ("/tokenize", {"prompt": "a", "model": "none"}, 404, "model_not_found"),
        ("/tokenize", {"messages": []}, 400, "invalid_value"),
        ("/detokenize", {}, 400, "missing_parameter"),
        ("/detokenize", {"tokens": [-1]}, 400, "invalid_value"),
        ("/detokenize", {"tokens": [2**40]}, 400, "invalid_value"),
        ("/detokenize", {"tokens": "a"}, 400, "invalid_value"),
        ("/detokenize", [], 400, "invalid_json"),
    ],
)
async def test_mistakes_are_named(path: str, body: Any, status: int, code: str) -> None:
    response = await post(path, body)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


async def test_a_body_over_the_limit() -> None:
    stage = Stage()
    async with stage.client() as client:
        big = b"x" * (stage.limits.max_body_bytes + 1)
        response = await client.post("/tokenize", content=big)
    assert response.status_code == 413
