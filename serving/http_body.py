"""How much of a request's body is read, and for how long? No more than the limits."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from serving.errors import body_too_large, body_too_slow
from serving.settings.config import LimitsSection


async def read_body(request: Request, *, limits: LimitsSection) -> bytes:
    """The body. Raises ApiError (408, 413), ClientDisconnect if the caller left."""
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limits.max_body_bytes:
                    raise body_too_large(limits.max_body_bytes)
                chunks.append(chunk)
    except TimeoutError:
        raise body_too_slow(limits.body_s) from None
    return b"".join(chunks)
