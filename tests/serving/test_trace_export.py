"""OpenTelemetry's own variables decide whether spans leave, and where to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.trace import NoOpTracer

from serving import tracing
from tests.serving.otlp import Collector, collecting

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import asyncio
from serving.tracing import set_up
from tests.serving.fakes import Stage, chat

traces = set_up("shardwise-test")
stage = Stage(tracer=traces.tracer)
stage.ready("a")

async def ask():
    async with stage.client() as client:
        await client.post("/v1/chat/completions", json=chat())

asyncio.run(ask())
{end}
"""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if "OTEL" not in k})


def program(*, end: str = "traces.flush()", **variables: str) -> subprocess.CompletedProcess[str]:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(end=end)],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found


def names(collector: Collector) -> set[str]:
    return {span.name for _, span in collector.spans}


@pytest.mark.parametrize("end", ["traces.flush()", ""])
def test_spans_reach_a_collector_and_at_the_latest_when_the_process_ends(end: str) -> None:
    with collecting() as collector:
        program(end=end, OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint)
    assert names(collector) == {"chat big", "admission", "queue", "attempt"}
    assert len({span.trace_id for _, span in collector.spans}) == 1
    assert {service for service, _ in collector.spans} == {"shardwise-test"}
    assert collector.paths == {"/v1/traces"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_SERVICE_NAME", "mine"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=mine"),
    ],
)
def test_the_operators_name_of_the_service_holds(name: str, value: str) -> None:
    with collecting() as collector:
        program(OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint, **{name: value})
    assert {service for service, _ in collector.spans} == {"mine"}


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_TRACES_SAMPLER": "always_off"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"},
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_TRACES_EXPORTER": "zipkin"},
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"},
    ],
)
def test_nothing_leaves_where_it_should_not(variables: dict[str, str]) -> None:
    with collecting() as collector:
        program(OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint, **variables)
    assert not collector.spans


def test_spans_can_be_printed() -> None:
    assert '"name": "chat big"' in program(OTEL_TRACES_EXPORTER="console").stdout


def test_without_variables_nothing_is_set_up_and_no_sdk_is_imported() -> None:
    program(end="import sys; assert 'opentelemetry.sdk' not in sys.modules")


def test_without_variables_the_tracer_does_nothing() -> None:
    assert isinstance(tracing.set_up("x").tracer, NoOpTracer)


@pytest.mark.parametrize(
    ("variables", "endpoint"),
    [
        ({}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c/x/"}, "http://c/x/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/t"}, "http://c/t"),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            },
            "http://c:4317",
        ),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "http://localhost:4318/v1/traces"),
        ({"OTEL_TRACES_EXPORTER": "console"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "TRUE"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "x"}, None),
    ],
)
def test_vllm_is_told_the_same_address(variables: dict[str, str], endpoint: str | None) -> None:
    assert tracing.otlp_endpoint(variables) == endpoint


def test_what_a_remote_cluster_is_told_is_opentelemetrys_alone() -> None:
    environ = {"OTEL_SERVICE_NAME": "x", "PATH": "/bin", "SECRET": "s"}
    assert tracing.variables(environ) == {"OTEL_SERVICE_NAME": "x"}
