"""POST /tokenize and /detokenize, as vLLM's server has them: the tokens the engine will see."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request

from serving.errors import ApiError, bad_request
from serving.http_body import read_body
from serving.requests import (
    Body,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
    validated,
)
from serving.service import Service


def add_tokenize_routes(app: FastAPI, service: Service) -> None:
    """Put the two routes on the application."""

    @app.post("/tokenize")
    async def tokenize(request: Request) -> dict[str, Any]:
        caller = service.door.caller(request.headers)
        raw = await read_body(request, limits=service.limits)
        body = await service.off_loop.run(lambda: validated(raw, TokenizeBody), size_bytes=len(raw))
        front = service.front_of(body.model or service.main_model)
        caller.check_model(front.model_name)
        asked = _asked(body, model=front.model_name)
        (tokens,) = await service.off_loop.run(lambda: front.encode(asked), size_bytes=len(raw))
        return {"count": len(tokens), "max_model_len": front.max_context, "tokens": tokens}

    @app.post("/detokenize")
    async def detokenize(request: Request) -> dict[str, str]:
        caller = service.door.caller(request.headers)
        raw = await read_body(request, limits=service.limits)
        body = await service.off_loop.run(
            lambda: validated(raw, DetokenizeBody), size_bytes=len(raw)
        )
        front = service.front_of(body.model or service.main_model)
        caller.check_model(front.model_name)
        text = await service.off_loop.run(lambda: front.decode(body.tokens), size_bytes=len(raw))
        return {"prompt": text}


def _asked(body: TokenizeBody, *, model: str) -> Body:
    """The generating request whose prompt this is. Raises ApiError (400)."""
    if (body.prompt is None) == (body.messages is None):
        raise _either()
    if body.messages is not None:
        return ChatBody(
            model=model,
            messages=body.messages,
            tools=body.tools,
            chat_template_kwargs=body.chat_template_kwargs,
        )
    assert body.prompt is not None
    return CompletionBody(
        model=model, prompt=body.prompt, add_special_tokens=body.add_special_tokens
    )


def _either() -> ApiError:
    return bad_request(
        "Send either 'prompt' or 'messages', one of them.", param="prompt", code="invalid_value"
    )
