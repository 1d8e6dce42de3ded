"""What does a replica add to a request's trace? A span around its engine's work.

It is a child of the gateway's attempt, and the engine gets it as parent of its own: vLLM makes a
span of each request where it is told an endpoint.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace

from opentelemetry.trace import SpanKind, StatusCode, Tracer

from serving import span_names as names
from serving.messages import EngineError, EngineReply, EngineRequest
from serving.tracing import carried, context_from, tell_failure

Generate = Callable[[EngineRequest], AsyncIterator[EngineReply]]


def with_spans(generate: Generate, tracer: Tracer, *, pool: str, replica_id: str) -> Generate:
    """`generate`, telling what it does where the request has a trace."""

    def answer(request: EngineRequest) -> AsyncIterator[EngineReply]:
        return spanned(request) if request.trace else generate(request)

    async def spanned(request: EngineRequest) -> AsyncIterator[EngineReply]:
        span = tracer.start_span(
            "engine",
            context=context_from(request.trace),
            kind=SpanKind.SERVER,
            attributes={
                names.OPERATION: "chat" if request.kind == "chat" else "text_completion",
                names.REQUEST_MODEL: str(request.body.get("model")),
                names.POOL: pool,
                names.REPLICA: replica_id,
                names.ENGINE_REQUEST_ID: request.request_id,
            },
        )
        begun = False
        replies = generate(replace(request, trace=carried(span)))
        try:
            async with aclosing(replies) as engine:  # type: ignore[type-var]
                async for reply in engine:
                    if isinstance(reply, EngineError):
                        span.set_attribute(names.ERROR_TYPE, str(reply.status))
                        span.set_status(StatusCode.ERROR)
                    elif not begun:
                        begun = True
                        span.add_event(names.FIRST_TOKEN)
                    yield reply
        except BaseException as error:
            tell_failure(span, error)
            raise
        finally:
            span.end()

    return answer
