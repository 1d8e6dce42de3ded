"""The bundled model on a GPU: the same commands, vLLM's GPU build. Small enough for minutes."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.live.instance import LiveInstance, free_port, link_models, write_config

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
