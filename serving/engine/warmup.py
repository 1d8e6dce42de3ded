"""What does a new replica compute before it takes requests? Beginnings that many prompts share.

Each is asked for once with one output token, so that its blocks are in the engine's prefix cache,
and so that the first caller does not wait for what an engine does at its first step. Nothing here
keeps a replica from starting: what fails is logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from serving.messages import EngineError, EngineReply, EngineRequest, Warmup

Generate = Callable[[EngineRequest], AsyncIterator[EngineReply]]

logger = logging.getLogger("ray.serve")


async def warm_up(generate: Generate, warmup: Warmup, *, model: str) -> int:
    """Ask for every beginning, one after the other; how many the engine has answered."""
    began_s, done = time.monotonic(), 0
    requests = _requests(warmup, model=model)
    for request in requests:
        try:
            done += await _ask(generate, request)
        except Exception:
            logger.exception("a warm-up prompt failed")
    if requests:
        spent_s = time.monotonic() - began_s
        logger.info("%d of %d warm-up prompts in %.1f s", done, len(requests), spent_s)
    return done


async def _ask(generate: Generate, request: EngineRequest) -> bool:
    replies = generate(request)
    async with aclosing(replies) as heard:  # type: ignore[type-var]
        async for reply in heard:
            if isinstance(reply, EngineError):
                logger.warning("a warm-up prompt was refused: %s", reply.message)
                return False
    return True


def _requests(warmup: Warmup, *, model: str) -> list[EngineRequest]:
    # A user's message follows in every chat; templates want to see one.
    chats = [
        [{"role": "system", "content": text}, {"role": "user", "content": "."}]
        for text in warmup.system_prompts
    ]
    bodies: list[tuple[Any, dict[str, Any]]] = [("chat", {"messages": chat}) for chat in chats]
    bodies += [("completions", {"prompt": text}) for text in warmup.prompts]
    return [
        EngineRequest(
            kind=kind,
            body={**body, "model": model, "max_tokens": 1},
            request_id=f"warm-up-{number}",
            tokens=0.0,
        )
        for number, (kind, body) in enumerate(bodies)
    ]
