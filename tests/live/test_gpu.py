"""The bundled model on a GPU: the same commands, vLLM's GPU build. Small enough for minutes."""

from __future__ import annotations

import gc
from pathlib import Path

import httpx
import pytest

from cluster.sim.measured_times import MeasuredTimes
from serving.bundled import HEAVY, bundled_path
from serving.engine.live_engine import LiveEngine, LiveSettings
from serving.engine.live_measure import live_file, measure
from serving.engine.live_replay import replay
from tests.live.instance import LiveInstance, free_port, link_models, write_config
from tests.live.test_calibrate_live import CELLS, TRACE

pytestmark = [pytest.mark.live, pytest.mark.gpu, pytest.mark.timeout(600)]


def test_the_bundled_model_answers_from_a_gpu(tmp_path: Path) -> None:
    instance = LiveInstance(tmp_path / "home", free_port())
    instance.home.mkdir()
    link_models(instance.home)
    plan = tmp_path / "plan.json"
    planned = instance.command(
        *("plan", "--model", "smollm2-135m-instruct", "--cluster", "local", "--max-dp", "1"),
        *("--isl", "256", "--osl", "128", "--max-model-len", "1024", "--max-replicas", "1"),
        *("--out", str(plan)),
    )
    assert planned.returncode == 0, planned.stderr
    config = write_config(instance.config, port=instance.port, steering={})
    try:
        up = instance.command("up", str(plan), "--config", str(config), timeout_s=420.0)
        assert up.returncode == 0, up.stdout + up.stderr
        answer = httpx.post(
            f"{instance.url}/v1/chat/completions",
            json={
                "model": "smollm2-135m-instruct",
                "messages": [{"role": "user", "content": "What is the capital of France?"}],
                "max_tokens": 12,
                "temperature": 0,
            },
            timeout=120.0,
        )
        assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    finally:
        assert instance.command("down").returncode == 0


@pytest.mark.filterwarnings("ignore:Unclosed context:ResourceWarning")
async def test_a_gpu_engine_is_measured_and_a_trace_replayed() -> None:
    settings = LiveSettings(model=bundled_path(HEAVY), max_num_seqs=4, max_model_len=512, chunk=128)
    async with LiveEngine.start(settings) as engine:
        samples = await measure(engine, CELLS, budget_s=15.0, tell=lambda text: None)
        file = live_file(engine, samples, date="2025-01-01", measured_s=15.0)
        records = await replay(engine, TRACE)
    gc.collect()  # what vLLM leaves to the collector is found here, and not by a later test
    times = MeasuredTimes.of(file)
    assert 0.0 < times.decode_s(1, 20, 1) < 0.1
    assert [record.output_tokens for record in records] == [each.output_tokens for each in TRACE]
