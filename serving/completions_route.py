"""How is a generating request answered over HTTP? One ASGI application per route.

It owns its connection: whatever the request is doing (waiting in line, waiting for its first
reply, streaming) ends when the caller goes away, and everything it held is free when it returns.

Invariants: a failure before the first reply has its own status; after it, the stream ends with one
`data: {"error": …}` event; the first reply is sent the moment it is there.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from cluster.priority import Priority
from serving.access import Caller
from serving.deadline import patience_s, within
from serving.degrade import TIER_HEADER
from serving.errors import ApiError, from_engine, internal_error
from serving.http_body import read_body
from serving.journey import CALLER_LEFT
from serving.long_input.choice import Choice, choice_of
from serving.messages import EngineError, EngineReply
from serving.requests import BodyKind
from serving.service import Service

REQUEST_ID_HEADER = "X-Request-Id"
_LONGEST_ID = 128
_EVENT_STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # asks proxies not to hold events back
}

logger = logging.getLogger("ray.serve")


class CompletionsRoute:
    """One generating route. `kind`: the bodies it takes."""

    def __init__(self, service: Service, kind: BodyKind) -> None:
        self._service = service
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = _Exchange(self._service, self._kind, scope=scope, send=send)
        try:
            exchange.enter()  # before anything is read of who may not ask
            raw = await read_body(Request(scope, receive), limits=self._service.limits)
            await _while_connected(receive, exchange.run(raw))
        except ClientDisconnect:
            pass
        except ApiError as error:
            await exchange.fail(error)
        finally:
            exchange.end()


class _Exchange:
    """One request and its answer."""

    def __init__(self, service: Service, kind: BodyKind, *, scope: Scope, send: Send) -> None:
        self._service = service
        self._kind = kind
        self._scope = scope
        self._send = send
        self._headers = Headers(scope=scope)
        self._request_id = _request_id(self._headers)
        self._arrived_s = service.now_s()
        self._journey = service.journeys.begin(
            kind, path=scope["path"], headers=self._headers, request_id=self._request_id
        )
        # As counted in the metrics when the exchange ends.
        self._status = CALLER_LEFT
        self._started = False
        self._pool = "none"
        self._priority = Priority.STANDARD
        self._caller = Caller(priority=self._priority)
        self._patience_s: float | None = None
        self._choice = Choice()

    def enter(self) -> None:
        """Who asks. Raises ApiError."""
        self._caller = self._service.door.caller(self._headers)
        self._priority = self._caller.priority
        self._journey.entered(self._caller)
        self._patience_s = patience_s(self._headers)
        self._choice = choice_of(self._headers)

    async def run(self, raw: bytes) -> None:
        """Answer."""
        try:
            await self._answer(raw)
        except ApiError as error:
            await self.fail(error)
        except OSError:  # the server's way to say that the caller has gone
            self._status = CALLER_LEFT
        except Exception:
            logger.exception("unexpected error in the gateway, request %s", self._request_id)
            self._status = 500
            if not self._started:
                await self.fail(internal_error())

    async def fail(self, error: ApiError) -> None:
        """Answer with an error."""
        self._status = error.status
        self._journey.refused(error)
        await self._respond(error_response(error, headers=self._common()))

    def end(self) -> None:
        """Count the request as ended, and tell how."""
        labels = (self._pool, str(self._status), self._priority.value)
        self._service.metrics.requests.labels(*labels).inc()
        ended = self._journey.end(status=self._status, tier=int(self._service.tier))
        self._service.metrics.ended(ended)

    async def _answer(self, raw: bytes) -> None:
        with self._journey.admission():
            admitted = await self._service.admit(
                raw,
                kind=self._kind,
                caller=self._caller,
                arrived_s=self._arrived_s,
                journey=self._journey,
                choice=self._choice,
            )
        self._pool = admitted.front.pool
        headers = {**self._common(), **admitted.headers}
        async with aclosing(self._in_time(self._service.replies(admitted))) as replies:
            first = await anext(replies)
            if admitted.request.stream:
                await self._stream(first, replies, headers=headers)
                return
            async for _ in replies:
                pass  # read to its end: closing it early would tell the engine to abort
        self._status = 200
        self._journey.sent(first)
        await self._respond(JSONResponse(first[-1], headers=headers))

    def _in_time(
        self, replies: AsyncGenerator[list[EngineReply], None]
    ) -> AsyncGenerator[list[EngineReply], None]:
        if self._patience_s is None:
            return replies
        spent_s = self._service.now_s() - self._arrived_s
        return within(replies, left_s=self._patience_s - spent_s, limit_s=self._patience_s)

    async def _respond(self, response: Response) -> None:
        self._started = True
        await response(self._scope, _never, self._send)

    async def _stream(
        self,
        batch: list[EngineReply] | None,
        replies: AsyncIterator[list[EngineReply]],
        *,
        headers: Mapping[str, str],
    ) -> None:
        self._started = True
        raw_headers = Headers({**_EVENT_STREAM, **headers}).raw
        await self._send({"type": "http.response.start", "status": 200, "headers": raw_headers})
        cadence = self._service.metrics.cadence(self._pool)
        while batch is not None:
            events = "".join(map(_event, batch)).encode()
            await self._send({"type": "http.response.body", "body": events, "more_body": True})
            self._journey.sent(batch)
            cadence.sent(batch, now_s=time.monotonic())
            batch = await _next(replies)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        self._journey.streamed()
        self._status = 200

    def _common(self) -> dict[str, str]:
        tier = str(int(self._service.tier))
        return {REQUEST_ID_HEADER: self._request_id, TIER_HEADER: tier}


def error_response(error: ApiError, *, headers: Mapping[str, str]) -> Response:
    """An error as a whole response."""
    return JSONResponse(
        error.body(), status_code=error.status, headers={**headers, **error.headers()}
    )


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, cancel it when the caller goes away, return when it has let go of everything."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _never() -> Message:
    raise RuntimeError("a response of known content reads nothing")


async def _next(replies: AsyncIterator[list[EngineReply]]) -> list[EngineReply] | None:
    """The next replies, None at the end. The status has been sent: a bug has to be an event."""
    try:
        return await anext(replies, None)
    except Exception:
        logger.exception("unexpected error in a stream")
        return [EngineError(status=500, message=internal_error().message, retryable=False)]


def _event(reply: EngineReply) -> str:
    if isinstance(reply, EngineError):
        reply = json.dumps(from_engine(reply.status, reply.message).body())
    return f"data: {reply}\n\n"


def _request_id(headers: Headers) -> str:
    """The caller's own id if it has a usable one: it comes back in the response, nothing more."""
    given = headers.get(REQUEST_ID_HEADER, "")
    usable = 0 < len(given) <= _LONGEST_ID and given.isascii() and given.isprintable()
    return given if usable else os.urandom(16).hex()
