"""What a replica reads off its engine's own metrics."""

from types import SimpleNamespace

from prometheus_client import REGISTRY, Counter, Gauge

from serving.engine.engine import Engine


def test_tokens_are_counted_and_not_the_time_at_which_counting_began() -> None:
    made = (
        Gauge("vllm:num_requests_running", "", ["engine"]),
        Counter("vllm:prompt_tokens", "", ["engine"]),
        Counter("vllm:generation_tokens", "", ["engine"]),
    )
    try:
        running, prompt, output = made
        running.labels("0").set(3)
        for engine, tokens in (("0", 700), ("1", 300)):
            prompt.labels(engine).inc(tokens)
        output.labels("0").inc(50)
        # Statistics are switched off: steps are not known.
        server = SimpleNamespace(engine=SimpleNamespace(_engine_client=None))
        stats = Engine(server=server).stats()
    finally:
        for metric in made:
            REGISTRY.unregister(metric)
    assert stats == {
        "running": 3.0,
        "waiting": 0.0,
        "kv_usage": 0.0,
        "prompt_tokens": 1000.0,
        "output_tokens": 50.0,
        "steps": 0.0,
    }
