"""Spans as tests see them: kept in memory, looked up by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Spans:
    """All that have ended."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler)
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = provider.get_tracer("test")

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self._kept.get_finished_spans()

    @property
    def request(self) -> ReadableSpan:
        """The one without a parent here."""
        inside = {span.context.span_id for span in self.all if span.context}
        (root,) = [s for s in self.all if s.parent is None or s.parent.span_id not in inside]
        return root

    def named(self, name: str) -> list[ReadableSpan]:
        """In the order of their beginnings."""
        return sorted(
            (span for span in self.all if span.name == name), key=lambda span: span.start_time or 0
        )

    def under(self, parent: ReadableSpan) -> list[str]:
        """Names of a span's children, in the order of their beginnings."""
        ordered = sorted(self.all, key=lambda span: span.start_time or 0)
        return [s.name for s in ordered if s.parent and s.parent.span_id == span_id(parent)]


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def trace_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def told(span: ReadableSpan) -> Mapping[str, Any]:
    """A span's attributes."""
    return span.attributes or {}


def event_names(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


def everything(spans: Spans) -> str:
    """All that the spans say, as one text to search."""
    return "\n".join(span.to_json() for span in spans.all)
