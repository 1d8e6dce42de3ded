"""The fake engine as Ray Serve LLM loads it, by `RAYLLM_VLLM_ENGINE_CLS`.

What is around it, Ray's server with its batching, and Ray's ingress, is as Ray ships it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from ray.llm._internal.serve.core.configs.openai_api_models import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    CompletionResponse,
)
from ray.llm._internal.serve.core.engine.protocol import LLMEngine

from bench.gateway_parts.answers import CHAT, COMPLETIONS, TOKENS, Kind, pace_s


class FakeServeEngine(LLMEngine):
    """What Ray's `LLMServer` asks of an engine."""

    def __init__(self, llm_config: Any) -> None:
        self._model: str = llm_config.model_id
        self._events = {kind: self._lines(kind) for kind in (CHAT, COMPLETIONS)}
        self._chat = ChatCompletionResponse(**CHAT.whole(self._model))
        self._completion = CompletionResponse(**COMPLETIONS.whole(self._model))

    async def start(self) -> None:
        """In no time."""

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        """Events as lines, or one response."""
        del raw_request_info
        async for reply in self._say(request, CHAT, self._chat):
            yield reply

    async def completions(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        """The same of a completion."""
        del raw_request_info
        async for reply in self._say(request, COMPLETIONS, self._completion):
            yield reply

    async def check_health(self) -> None:
        """It never dies."""

    async def build_asgi_app(self) -> FastAPI:
        """The engine's own server, which direct streaming reaches without Ray's ingress."""
        app = FastAPI()

        @app.post("/v1/chat/completions", response_model=None)
        async def chat(request: ChatCompletionRequest) -> Any:
            if request.stream:
                return StreamingResponse(self.chat(request), media_type="text/event-stream")
            return await anext(self.chat(request))

        return app

    async def _say(self, request: Any, kind: Kind, whole: Any) -> AsyncIterator[Any]:
        said = request.messages[-1]["content"] if kind.chat else request.prompt
        token_s = pace_s(str(said).encode())
        if not request.stream:
            await _wait(TOKENS * token_s)
            yield whole
            return
        loop = asyncio.get_running_loop()
        lines, begun_s = self._events[kind], loop.time()
        ahead = len(lines) - TOKENS - 1  # the role, and `[DONE]`
        for index, line in enumerate(lines):
            tokens = min(TOKENS, max(1, index - ahead + 1))
            await _wait(begun_s + token_s * tokens - loop.time() if token_s else 0.0)
            yield line

    def _lines(self, kind: Kind) -> list[str]:
        return [f"data: {event}\n\n" for event in [*kind.events(self._model), "[DONE]"]]

    def routing_stats(self) -> dict[str, Any]:
        """None."""
        return {}

    async def resolve_lora(self, lora_model: Any) -> None:
        """There are none."""

    async def reset_prefix_cache(self) -> None:
        """It has none."""

    async def embeddings(self, *_: Any) -> AsyncIterator[Any]:
        """Not asked for."""
        raise NotImplementedError
        yield

    transcriptions = tokenize = detokenize = embeddings


async def _wait(seconds: float) -> None:
    if seconds > 0:
        await asyncio.sleep(seconds)
