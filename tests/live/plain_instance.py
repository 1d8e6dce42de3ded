"""A real instance that stays as it is: one replica of the bundled model, steering only watches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.live.instance import LiveInstance, free_port, link_models

MODEL = "smollm2-135m-instruct"


@contextmanager
def plain_instance(
    home: Path,
    *,
    slots: int = 8,
    engine_args: Mapping[str, object] | None = None,
    limits: Mapping[str, object] | None = None,
    steering: Mapping[str, object] | None = None,
    maximum: int = 1,
) -> Iterator[LiveInstance]:
    """Served for as long as the context lasts.

    `engine_args`: beside those of the plan. `steering`: None for one that only watches.
    """
    link_models(home)
    instance = LiveInstance(home, free_port())
    plan = home / "plan.json"
    planned = instance.command(
        *("plan", "--model", MODEL, "--cluster", "local", "--isl", "64", "--osl", "32"),
        *("--max-model-len", "512", "--max-replicas", str(maximum), "--out", str(plan)),
    )
    assert planned.returncode == 0, planned.stderr
    data = json.loads(plan.read_text())
    (pool,) = data["pools"]
    pool["layout"]["max_num_seqs"] = pool["engine_args"]["max_num_seqs"] = slots
    pool["engine_args"] |= engine_args or {}
    plan.write_text(json.dumps(data))
    config = {
        "http": {"port": instance.port},
        "limits": dict(limits or {}),
        "steering": {"mode": "advisory"} if steering is None else dict(steering),
    }
    instance.config.write_text(yaml.safe_dump(config))
    try:
        up = instance.command("up", str(plan), "--config", str(instance.config), timeout_s=420.0)
        assert up.returncode == 0, up.stdout + up.stderr
        yield instance
    finally:
        down = instance.command("down")
    assert down.returncode == 0, down.stderr
