"""How much of a request's body is read? No more than the limit."""

from __future__ import annotations

from starlette.requests import Request

from serving.errors import body_too_large


async def read_body(request: Request, *, limit: int) -> bytes:
    """The body. Raises ApiError (413) beyond `limit` bytes, ClientDisconnect if the caller left."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise body_too_large(limit)
        chunks.append(chunk)
    return b"".join(chunks)
