"""A real instance of a tiny model on two ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from serving.bundled import bundled_path
from tests.live.instance import LiveInstance, free_port, link_models, write_config

MODEL = "tiny"


@contextmanager
def tiny_instance(
    folder: Path,
    *,
    steering: Mapping[str, object],
    engine_args: Mapping[str, object] | None = None,
    keys_file: Path | None = None,
    key: str | None = None,
    limits: Mapping[str, object] | None = None,
) -> Iterator[LiveInstance]:
    """Served for as long as the context lasts. `engine_args`: beside those of the plan.

    `key`: one of the file that its callers use.
    """
    model = folder / MODEL
    make_tiny_model(model)
    instance = LiveInstance(folder / "home", free_port(), key)
    instance.home.mkdir()
    link_models(instance.home)
    plan = folder / "plan.json"
    planned = instance.command(
        *("plan", "--model", str(model), "--served-name", MODEL),
        *("--cluster", "1x2xcpu", "--isl", "64", "--osl", "32"),
        *("--max-model-len", "256", "--out", str(plan)),
    )
    assert planned.returncode == 0, planned.stderr
    _force_tp2(plan, engine_args=engine_args or {})
    config = write_config(
        folder / "serve.yaml",
        port=instance.port,
        steering=steering,
        keys_file=keys_file,
        limits=limits or {},
    )
    try:
        up = instance.command("up", str(plan), "--config", str(config), timeout_s=420.0)
        assert up.returncode == 0, up.stdout + up.stderr
        yield instance
    finally:
        down = instance.command("down")
    assert down.returncode == 0, down.stderr


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


def _force_tp2(path: Path, *, engine_args: Mapping[str, object]) -> None:
    plan = json.loads(path.read_text())
    pool = plan["pools"][0]
    pool["layout"].update(tp=2, moe_tp=2, pp=1, max_num_seqs=4)
    pool["engine_args"].update(tensor_parallel_size=2, pipeline_parallel_size=1, max_num_seqs=4)
    pool["engine_args"].update(enforce_eager=True, **engine_args)
    pool["replicas"] = dict.fromkeys(("minimum", "initial", "maximum"), 1)
    path.write_text(json.dumps(plan))
