"""What do traces and the request log cost a request? `python bench/request_telemetry.py [--quick]`.

CPU time of the process per request, threads that write and export included: the HTTP application
over replicas that answer at once, as in `bench/gateway.py`, without any of them and with one.
Rounds of all cases take turns; what a case adds is the median of its differences within the rounds.
Spans are encoded as OTLP and thrown away.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from serving.http_api import HttpApi
from serving.request_log import RequestLog, open_request_log
from serving.settings.config import LogsSection
from tests.serving.fakes import FakeLink, Stage, answering, chat

CHAT = "/v1/chat/completions"
EVENTS = 64


class Encoded(SpanExporter):
    """As OTLP's exporter, without the network."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Encode."""
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


def traced(ratio: float) -> TracerProvider:
    provider = TracerProvider(sampler=TraceIdRatioBased(ratio))
    provider.add_span_processor(BatchSpanProcessor(Encoded()))
    return provider


def app(**told: Any) -> HttpApi:
    stage = Stage(max_requests=256, link=FakeLink(answering(*["word"] * EVENTS)), **told)
    stage.ready("a", "b", "c", "d")
    return stage.app()


async def cpu_us(app: HttpApi, flush: Callable[[], object], *, count: int, stream: bool) -> float:
    """CPU time per request, µs."""
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://bench") as http:
        began_s = time.process_time()
        for _ in range(count):
            (await http.post(CHAT, json=chat(stream=stream))).raise_for_status()
        flush()
        return 1e6 * (time.process_time() - began_s) / count


async def measure(directory: Path, *, count: int, rounds: int) -> dict[str, float]:
    log = open_request_log(LogsSection(access=directory / "access.jsonl"))
    assert isinstance(log, RequestLog)
    none, all_ = traced(0.0), traced(1.0)
    cases: dict[str, tuple[HttpApi, Callable[[], object]]] = {
        "nothing": (app(), lambda: None),
        "request_log": (app(log=log.write), lambda: None),
        "traced_0": (app(tracer=none.get_tracer("b")), none.force_flush),
        "traced_1": (app(tracer=all_.get_tracer("b")), all_.force_flush),
    }
    seen: dict[str, list[float]] = {}
    for _ in range(rounds):
        for stream in (False, True):
            for name, (made, flush) in cases.items():
                kind = f"{name}_{'stream' if stream else 'whole'}_us"
                cost = await cpu_us(made, flush, count=count, stream=stream)
                seen.setdefault(kind, []).append(cost)
    log.close()
    for provider in (none, all_):
        provider.shutdown()
    figures = {}
    for kind in ("whole", "stream"):
        bare = seen[f"nothing_{kind}_us"]
        figures[f"nothing_{kind}_us"] = statistics.median(bare)
        for name in ("request_log", "traced_0", "traced_1"):
            pairs = zip(seen[f"{name}_{kind}_us"], bare, strict=True)
            figures[f"{name}_adds_{kind}_us"] = statistics.median(a - b for a, b in pairs)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    rounds = 3 if arguments.quick else 21
    with tempfile.TemporaryDirectory() as directory:
        figures = asyncio.run(measure(Path(directory), count=200, rounds=rounds))
    for name, value in figures.items():
        print(f"{name:28} {value:,.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
