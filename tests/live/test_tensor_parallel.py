"""A TP=2 plan becomes two Ray workers in one placement group: asked of Ray, not of ourselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.bundled import bundled_path
from tests.live.instance import LiveInstance, free_port, link_models, write_config

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


def make_tiny_model(directory: Path) -> None:
    """A random two-layer model of four heads, with the bundled tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(bundled_path("smollm2-135m-instruct"))
    config = LlamaConfig(
        hidden_size=128,
        head_dim=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=len(tokenizer),
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def test_tensor_parallel_ranks_share_a_placement_group(tmp_path: Path) -> None:
    model = tmp_path / "tiny"
    make_tiny_model(model)
    instance = LiveInstance(tmp_path / "home", free_port())
    instance.home.mkdir()
    link_models(instance.home)
    plan = tmp_path / "plan.json"
    planned = instance.command(
        *("plan", "--model", str(model), "--served-name", "tiny", "--cluster", "1x2xcpu"),
        *("--isl", "64", "--osl", "32", "--max-model-len", "256", "--out", str(plan)),
    )
    assert planned.returncode == 0, planned.stderr
    _force_tp2(plan)
    config = write_config(tmp_path / "serve.yaml", port=instance.port, steering={})
    try:
        up = instance.command("up", str(plan), "--config", str(config), timeout_s=420.0)
        assert up.returncode == 0, up.stdout + up.stderr
        answer = httpx.post(
            f"{instance.url}/v1/completions",
            json={"model": "tiny", "prompt": "one two three", "max_tokens": 4},
            timeout=120.0,
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 4
        actors, groups = _ray_state(instance)
    finally:
        down = instance.command("down")
    assert down.returncode == 0
    workers = [a for a in actors if a["class_name"] == "CpuRayWorker" and a["state"] == "ALIVE"]
    assert len(workers) == 2
    assert len({worker["placement_group_id"] for worker in workers}) == 1
    group = next(g for g in groups if g["placement_group_id"] == workers[0]["placement_group_id"])
    assert group["state"] == "CREATED"
    assert len(group["bundles"]) == 2


def _force_tp2(path: Path) -> None:
    plan = json.loads(path.read_text())
    pool = plan["pools"][0]
    pool["layout"].update(tp=2, moe_tp=2, pp=1)
    pool["engine_args"].update(tensor_parallel_size=2, pipeline_parallel_size=1, max_num_seqs=4)
    pool["engine_args"]["enforce_eager"] = True
    pool["layout"]["max_num_seqs"] = 4
    pool["replicas"] = {"minimum": 1, "initial": 1, "maximum": 1}
    path.write_text(json.dumps(plan))


def _ray_state(instance: LiveInstance) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Actors and placement groups, from the state interface of the instance's own cluster."""
    token = Path.home() / ".ray" / "auth_token"
    headers = {"Authorization": f"Bearer {token.read_text().strip()}"} if token.is_file() else {}
    dashboard = instance.progress()["dashboard"]
    found = []
    for what in ("actors", "placement_groups"):
        response = httpx.get(
            f"http://{dashboard}/api/v0/{what}?detail=1&limit=1000", headers=headers, timeout=30.0
        )
        response.raise_for_status()
        found.append(response.json()["data"]["result"]["result"])
    return found[0], found[1]
