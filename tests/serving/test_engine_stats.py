"""What a replica reads off its engine's own metrics."""

from types import SimpleNamespace

from prometheus_client import CollectorRegistry, Counter, Gauge

from serving.engine.engine import read_metrics
from serving.engine.steps import Steps


def test_tokens_are_counted_and_not_the_time_at_which_counting_began() -> None:
    registry = CollectorRegistry()
    running = Gauge("vllm:num_requests_running", "", ["engine"], registry=registry)
    prompt = Counter("vllm:prompt_tokens", "", ["engine"], registry=registry)
    output = Counter("vllm:generation_tokens", "", ["engine"], registry=registry)
    running.labels("0").set(3)
    for engine, tokens in (("0", 700), ("1", 300)):
        prompt.labels(engine).inc(tokens)
    output.labels("0").inc(50)
    assert read_metrics(registry) == {
        "running": 3.0,
        "waiting": 0.0,
        "kv_usage": 0.0,
        "prompt_tokens": 1000.0,
        "output_tokens": 50.0,
    }


def test_steps_are_what_the_statistics_are_told() -> None:
    told: list[object] = []
    client = SimpleNamespace(logger_manager=SimpleNamespace(record=told.append))
    steps = Steps(client)
    for outputs in ("first", "second"):
        client.logger_manager.record(outputs)
    assert (steps.count, told) == (2, ["first", "second"])


def test_without_statistics_no_step_is_counted() -> None:
    assert Steps(SimpleNamespace(logger_manager=None)).count == 0
