"""The bundled model as a pooling model: vLLM makes vectors of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.live.instance import LiveInstance
from tests.live.plain_instance import MODEL, plain_instance

pytestmark = [pytest.mark.live, pytest.mark.timeout(480)]

TEXTS = ["Paris is the capital of France.", "Stir the soup.", "Paris is the capital of France."]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveInstance]:
    pooling = {"runner": "pooling", "convert": "embed"}
    with plain_instance(tmp_path_factory.mktemp("home"), engine_args=pooling) as instance:
        yield instance


def test_vectors_through_the_openai_client(service: LiveInstance) -> None:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none") as client:
        packed = client.embeddings.create(model=MODEL, input=TEXTS)  # base64, unless told
        plain = client.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float")
        with pytest.raises(openai.BadRequestError, match="generates no text"):
            client.completions.create(model=MODEL, prompt="x")
        with pytest.raises(openai.BadRequestError, match="dimensions"):
            client.embeddings.create(model=MODEL, input="x", dimensions=16)
    first, other, again = (one.embedding for one in packed.data)
    assert first == again
    assert cosine(first, other) < 0.99
    assert math.isclose(cosine(first, first), 1.0, abs_tol=1e-5)  # normalised: its own length
    assert [one.embedding for one in plain.data] == [
        pytest.approx(one.embedding, abs=1e-6) for one in packed.data
    ]
    counted = httpx.post(
        f"{service.url}/tokenize", json={"model": MODEL, "prompt": TEXTS[0]}, timeout=30.0
    ).json()
    assert packed.usage.prompt_tokens > 2 * counted["count"]


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_vectors_through_langchain(service: LiveInstance) -> None:
    from langchain_openai import OpenAIEmbeddings

    embeddings = OpenAIEmbeddings(
        model=MODEL,
        base_url=f"{service.url}/v1",
        api_key="none",
        tiktoken_enabled=False,
        check_embedding_ctx_length=False,
    )
    documents = embeddings.embed_documents(TEXTS)
    assert [len(vector) for vector in documents] == [576] * 3
    assert documents[0] == pytest.approx(embeddings.embed_query(TEXTS[0]), abs=1e-3)
