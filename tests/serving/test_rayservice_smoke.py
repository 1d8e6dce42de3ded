"""What `helm test` asks a service, and says of it."""

from __future__ import annotations

import json

import httpx
import pytest

from serving.rayservice import smoke

READY = httpx.Response(200, json={"status": "ready"})
ANSWER = httpx.Response(200, json={"choices": [{"text": " three"}]})


def said(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answers: dict[str, httpx.Response],
    *options: str,
) -> tuple[int, str, list[httpx.Request]]:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if request.url.path not in answers:
            raise httpx.ConnectError("refused")
        return answers[request.url.path]

    client = httpx.Client

    def made(**settings: object) -> httpx.Client:
        return client(transport=httpx.MockTransport(answer), **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(httpx, "Client", made)
    monkeypatch.setattr("sys.argv", ["smoke", "http://chat-serve-svc:8000", *options])
    return smoke.main(), capsys.readouterr().out, asked


def test_a_service_that_answers_is_ready(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHARDWISE_API_KEY", "sw-1")
    answers = {"/ready": READY, "/v1/completions": ANSWER}
    code, words, asked = said(monkeypatch, capsys, answers, "--model", "chat")
    assert (code, words) == (0, "ready\n")
    assert json.loads(asked[1].content)["model"] == "chat"
    assert asked[1].headers["authorization"] == "Bearer sw-1"


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({}, "does not answer: ConnectError"),
        ({"/ready": httpx.Response(503, text="no replica")}, "it is not ready: no replica"),
        (
            {"/ready": READY, "/v1/completions": httpx.Response(401, text="invalid_api_key")},
            "chat answered with status 401: invalid_api_key",
        ),
    ],
)
def test_one_that_does_not_is_told_with_its_words(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answers: dict[str, httpx.Response],
    words: str,
) -> None:
    code, out, _ = said(monkeypatch, capsys, answers, "--model", "chat")
    assert code == 1
    assert words in out
