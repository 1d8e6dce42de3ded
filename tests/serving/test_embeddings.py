"""POST /v1/embeddings: served where the model makes vectors, refused in words where it does not."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from autoscaler.snapshot import Tier
from serving.access import PRIORITY_HEADER
from tests.serving.fakes import Caller, FakeLink, Gate, Stage, chat

PATH = "/v1/embeddings"


def vectors_only(**fields: Any) -> Stage:
    stage = Stage(embedding=("main",), **fields)
    stage.ready("a")
    return stage


async def asked(stage: Stage, *, path: str = PATH, **body: Any) -> httpx.Response:
    async with stage.client() as client:
        response = await client.post(path, json={"model": "big", **body})
    stage.assert_idle()
    return response


@pytest.mark.parametrize(
    ("sent", "count"),
    [
        ("one two", 1),
        (["one", "two three"], 2),
        ([1, 2, 3], 1),
        ([[1, 2], [3]], 2),
    ],
)
async def test_every_form_of_input(sent: object, count: int) -> None:
    stage = vectors_only()
    response = await asked(stage, input=sent)
    assert len(response.json()["data"]) == count
    ((_, request),) = stage.link.calls
    assert (request.kind, request.body) == ("embeddings", {"model": "big", "input": sent})


async def test_the_openai_client_is_answered() -> None:
    stage = vectors_only()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=stage.app())) as http:
        client = openai.AsyncOpenAI(
            base_url="http://gateway/v1", api_key="none", http_client=http, max_retries=0
        )
        answer = await client.embeddings.create(model="big", input=["one", "two"])
    assert [one.embedding for one in answer.data] == [[0.0, 1.0], [1.0, 1.0]]
    assert stage.link.calls[0][1].body["encoding_format"] == "base64"  # the client's own wish


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": [1, -1]}, "input.1"),
        ({"input": None}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"stream": True}, "stream"),
    ],
)
async def test_a_bad_field_is_named(change: dict[str, object], param: str) -> None:
    response = await asked(vectors_only(), **{"input": "one", **change})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_an_input_may_fill_the_context_and_no_more() -> None:
    assert (await asked(vectors_only(), input=[1] * 100)).status_code == 200
    error = (await asked(vectors_only(), input=[1] * 101)).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert "at most 100 tokens" in error["message"]


async def test_a_generating_model_says_that_it_has_none() -> None:
    stage = Stage()
    stage.ready("a")
    response = await asked(stage, input="one")
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (
        *(400, "wrong_model_kind"),
        "model",
    )
    assert "'big' generates text, it has no embeddings" in error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", chat()), ("/v1/completions", {"prompt": "one"})],
)
async def test_an_embedding_model_says_that_it_generates_nothing(path: str, body: dict) -> None:
    error = (await asked(vectors_only(), path=path, **body)).json()["error"]
    assert error["code"] == "wrong_model_kind"
    assert "/v1/embeddings" in error["message"]


async def test_no_tier_gives_them_to_another_model() -> None:
    stage = Stage(with_light=True, embedding=("main", "light"))
    stage.ready("a", light=["b"], tier=Tier.LIGHT_MODEL)
    response = await asked(stage, input="one")
    assert response.json()["model"] == "big"
    assert "X-Shardwise-Degraded" not in response.headers


async def test_they_are_shed_with_the_others_and_vips_are_not() -> None:
    stage = vectors_only()
    stage.ready("a", tier=Tier.SHED)
    assert (await asked(stage, input="one")).json()["error"]["code"] == "overloaded"
    async with stage.client() as client:
        vip = await client.post(
            PATH, json={"model": "big", "input": "one"}, headers={PRIORITY_HEADER: "vip"}
        )
    assert vip.status_code == 200


async def test_who_leaves_frees_the_replica() -> None:
    gate = Gate()
    stage = vectors_only(link=FakeLink(gate.script))
    caller = Caller(stage.app(), {"model": "big", "input": "one"}, path=PATH)
    await gate.reached.wait()
    caller.leave()
    async with asyncio.timeout(5):
        await caller.task
    stage.assert_idle()
