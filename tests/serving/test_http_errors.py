"""Every answer that is not 200 has OpenAI's shape and says what to change."""

import json

import httpx
import pytest

from serving.settings.config import LimitsSection
from tests.serving.fakes import Stage, chat

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def problem(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


async def refused(stage: Stage, path: str = CHAT, status: int = 400, **request: object) -> dict:
    async with stage.client() as client:
        error = problem(await client.post(path, **request), status)  # type: ignore[arg-type]
    stage.assert_idle()
    assert stage.link.calls == []
    return error


@pytest.mark.parametrize("content", [b"{", b"", b"[]", b"\xff", b"null"])
async def test_malformed_bodies(content: bytes) -> None:
    stage = Stage()
    error = await refused(stage, content=content)
    assert error["code"] == "invalid_json"
    assert stage.value("shardwise_requests_total", pool="none", status="400", priority="standard")


async def test_a_bad_field_is_named() -> None:
    assert (await refused(Stage(), json=chat(temperature="hot")))["param"] == "temperature"


async def test_an_unknown_model_is_answered_with_the_known_ones() -> None:
    error = await refused(Stage(with_light=True), status=404, json=chat(model="gpt-9"))
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'gpt-9'" in error["message"]
    assert "'big'" in error["message"]
    assert "'small'" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param", "numbers"),
    [
        (CHAT, chat(messages=[{"role": "user", "content": "x " * 100}]), "messages", "99"),
        (CHAT, chat(messages=[{"role": "user", "content": "x " * 99}], max_tokens=2), None, "101"),
        (CHAT, chat(max_completion_tokens=98), None, "(3 in the prompt, 98 for the output)"),
        (TEXT, {"model": "big", "prompt": [1] * 130}, "prompt", "the prompt has 130"),
        (TEXT, {"model": "big", "prompt": ["a", "b " * 100]}, "prompt", "the prompt has 100"),
    ],
)
async def test_beyond_the_context(path: str, body: dict, param: str | None, numbers: str) -> None:
    error = await refused(Stage(), path, json=body)
    assert error["code"] == "context_length_exceeded"
    assert "100 tokens" in error["message"]
    assert numbers in error["message"]
    assert param is None or error["param"] == param


async def test_more_minimum_tokens_than_there_may_be() -> None:
    error = await refused(Stage(), json=chat(min_tokens=9, max_tokens=8))
    assert error["param"] == "min_tokens"


async def test_a_bad_priority_header() -> None:
    headers = {"X-Shardwise-Priority": "urgent"}
    error = await refused(Stage(), json=chat(), headers=headers)
    assert error["param"] == "X-Shardwise-Priority"
    assert "vip, standard or batch" in error["message"]


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_beyond_the_limit_is_not_read(declared: bool) -> None:
    stage = Stage(limits=LimitsSection(max_body_bytes=1000))
    content = json.dumps(chat(user="x" * 2000)).encode()

    async def pieces():
        yield content

    error = await refused(stage, status=413, content=content if declared else pieces())
    assert error["code"] == "request_too_large"
    assert "1000 bytes" in error["message"]


async def test_unknown_urls_and_wrong_methods() -> None:
    async with Stage().client() as client:
        for path in ("/v1/rerank", "/", "/v1/chat/completions/"):
            assert problem(await client.post(path, json={}), 404)["code"] == "unknown_url"
        wrong = await client.get(CHAT)
        assert problem(wrong, 405)["code"] == "method_not_allowed"
        assert wrong.headers["Allow"] == "POST"
        assert problem(await client.post("/health"), 405)["code"] == "method_not_allowed"
        missing = await client.get("/v1/models/org/gpt-9")
        assert problem(missing, 404)["code"] == "model_not_found"


async def test_a_bug_is_a_clean_500(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.service.front_of = lambda model: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    async with stage.client() as client:
        for request in (client.post(CHAT, json=chat()), client.get("/v1/models/big")):
            error = problem(await request, 500)
            assert (error["type"], "division" in error["message"]) == ("server_error", False)
    assert "ZeroDivisionError" in caplog.text
    assert stage.value("shardwise_requests_total", pool="none", status="500", priority="standard")
