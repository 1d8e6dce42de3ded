"""Where do this process's traces go? Where OpenTelemetry's own variables say, or nowhere.

An exporter is set up if `OTEL_TRACES_EXPORTER` names one (`otlp`, `console`) or an endpoint is set
(`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`); everything else about it,
sampling included, is read by OpenTelemetry itself. The protocol is HTTP unless one is named, as its
specification asks. Context comes and goes as W3C Trace Context (https://www.w3.org/TR/trace-context).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.trace import NoOpTracer, Span, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers

from serving import span_names as names
from serving.errors import ApiError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

EXPORTER = "OTEL_TRACES_EXPORTER"
DISABLED = "OTEL_SDK_DISABLED"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
SERVICE_NAME = "OTEL_SERVICE_NAME"
RESOURCE_ATTRIBUTES = "OTEL_RESOURCE_ATTRIBUTES"
_HTTP, _GRPC = "http/protobuf", "grpc"
_TRACEPARENT, _TRACESTATE = "traceparent", "tracestate"
_LONGEST_HEADER = 512  # characters

_PROPAGATOR = TraceContextTextMapPropagator()
_NOTHING: Mapping[str, str] = {}

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True, kw_only=True)
class Traces:
    """This process's way out. `flush`: sends what is waiting; may take seconds."""

    tracer: Tracer
    flush: Callable[[], object]


NO_TRACES = Traces(tracer=NoOpTracer(), flush=lambda: None)


def set_up(service: str) -> Traces:
    """What the environment asks for. `service`: this process's name where it gives none.

    Name and protocol are written back to the environment, where vLLM looks for them.
    """
    # They warn of every malformed header, and headers are the callers' to choose.
    logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
    environ = os.environ
    wanted = _exporters(environ)
    if not wanted:
        return NO_TRACES
    environ[TRACES_PROTOCOL] = _protocol(environ)
    if "service.name=" not in environ.get(RESOURCE_ATTRIBUTES, ""):
        environ.setdefault(SERVICE_NAME, service)
    try:
        exporters = [_exporter(name, environ) for name in wanted]
    except ValueError as error:
        logger.warning("requests are not traced: %s", error)
        return NO_TRACES
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # Not made the process's own: vLLM makes one of its own there.
    provider = TracerProvider()
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return Traces(tracer=provider.get_tracer("shardwise"), flush=provider.force_flush)


def otlp_endpoint(environ: Mapping[str, str] = os.environ) -> str | None:
    """Where spans are sent by OTLP, the whole address; None if they are not."""
    if "otlp" not in _exporters(environ) or _protocol(environ) not in (_HTTP, _GRPC):
        return None
    if environ.get(TRACES_ENDPOINT):
        return environ[TRACES_ENDPOINT]
    base = environ.get(ENDPOINT)
    if _protocol(environ) == _GRPC:
        return base or "http://localhost:4317"
    return f"{(base or 'http://localhost:4318').rstrip('/')}/v1/traces"


def variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """All that is set of OpenTelemetry's, for processes that do not inherit this environment."""
    return {name: value for name, value in environ.items() if name.startswith("OTEL_")}


def context_of(headers: Headers) -> Context:
    """The caller's trace, empty without one; what is not as the W3C says is no trace."""
    parents = headers.getlist(_TRACEPARENT)
    if len(parents) != 1 or len(parents[0]) > _LONGEST_HEADER:
        return Context()
    carrier = {_TRACEPARENT: parents[0], _TRACESTATE: ",".join(headers.getlist(_TRACESTATE))}
    return context_from(carrier)


def context_from(carrier: Mapping[str, str]) -> Context:
    """The trace that `carried` has written down."""
    return _PROPAGATOR.extract(carrier, context=Context())


def carried(span: Span) -> Mapping[str, str]:
    """A span as headers, for whoever works on its behalf; empty without a trace."""
    if not span.get_span_context().is_valid:
        return _NOTHING
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context=set_span_in_context(span, Context()))
    return carrier


def tell_failure(span: Span, error: BaseException) -> None:
    """Say of what kind an error is. Its words stay out: they may quote a prompt."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        span.set_attribute(names.OUTCOME, "cancelled")
        return
    span.set_attribute(names.OUTCOME, "error")
    if isinstance(error, ApiError):
        span.set_attribute(names.ERROR_TYPE, error.code or str(error.status))
        if error.status < 500:
            return
    else:
        span.set_attribute(names.ERROR_TYPE, type(error).__name__)
    span.set_status(StatusCode.ERROR)


def _protocol(environ: Mapping[str, str]) -> str:
    return environ.get(TRACES_PROTOCOL) or environ.get(PROTOCOL) or _HTTP


def _exporters(environ: Mapping[str, str]) -> list[str]:
    if environ.get(DISABLED, "").strip().lower() == "true":
        return []
    named = environ.get(EXPORTER, "").strip().lower()
    if named:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "none")]
    return ["otlp"] if environ.get(ENDPOINT) or environ.get(TRACES_ENDPOINT) else []


def _exporter(name: str, environ: Mapping[str, str]) -> SpanExporter:
    """Raises ValueError for what this service does not have."""
    protocol = _protocol(environ)
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    if name != "otlp":
        raise ValueError(f"{EXPORTER} is '{name}'; use otlp, console or none.")
    if protocol == _GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        return Grpc()
    if protocol == _HTTP:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

        return Http()
    raise ValueError(f"the OTLP protocol is '{protocol}'; use {_HTTP} or {_GRPC}.")
