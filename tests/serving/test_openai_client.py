"""The `openai` package is the caller that matters."""

from collections.abc import AsyncIterator

import httpx
import openai
import pytest

from autoscaler.snapshot import Tier
from tests.serving.fakes import Stage, lost_after

HELLO = [{"role": "user", "content": "hello there"}]


@pytest.fixture
async def stage() -> Stage:
    stage = Stage(with_light=True)
    stage.ready("a")
    return stage


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[openai.AsyncOpenAI]:
    transport = httpx.ASGITransport(app=stage.app())
    async with httpx.AsyncClient(transport=transport) as http:
        yield openai.AsyncOpenAI(
            base_url="http://gateway/v1", api_key="none", http_client=http, max_retries=0
        )


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="big", messages=HELLO)
    assert answer.choices[0].message.content == "hello world"


async def test_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="big", messages=HELLO, stream=True)
    words = [chunk.choices[0].delta.content async for chunk in stream]
    assert words == ["hello", "world"]


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["big", "small"]


async def test_a_broken_stream_raises_after_what_had_come(
    stage: Stage, client: openai.AsyncOpenAI
) -> None:
    stage.link.by_replica["a"] = lost_after("hello")
    words = []
    stream = await client.chat.completions.create(model="big", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="replica a was lost"):
        async for chunk in stream:
            words.append(chunk.choices[0].delta.content)
    assert words == ["hello"]


async def test_errors_have_their_classes(stage: Stage, client: openai.AsyncOpenAI) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as missing:
        await create(model="gpt-9", messages=HELLO)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        await create(model="big", messages=HELLO, max_tokens=1000)
    assert bad.value.code == "context_length_exceeded"
    stage.ready("a", tier=Tier.SHED)
    with pytest.raises(openai.RateLimitError) as busy:
        await create(model="big", messages=HELLO)
    assert busy.value.response.headers["Retry-After"] == "7"
