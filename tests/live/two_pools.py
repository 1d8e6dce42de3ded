"""A real instance with something to steer: the bundled model, main 1 to 2, light 0 to 1."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.live.instance import LiveInstance, free_port, link_models, write_config


@contextmanager
def two_pools(home: Path, *, steering: Mapping[str, object]) -> Iterator[LiveInstance]:
    """Planned for this machine and served for as long as the context lasts."""
    link_models(home)
    instance = LiveInstance(home, free_port())
    plan = home / "plan.json"
    planned = instance.command(
        *("plan", "--model", "smollm2-135m-instruct", "--cluster", "local"),
        *("--light", "smollm2-135m-instruct-int8", "--isl", "128", "--osl", "64"),
        *("--ttft", "10s", "--tpot", "500ms", "--max-model-len", "1024"),
        *("--max-replicas", "2", "--out", str(plan)),
    )
    assert planned.returncode == 0, planned.stderr
    _small_batches(plan)
    config = write_config(instance.config, port=instance.port, steering=steering)
    try:
        up = instance.command("up", str(plan), "--config", str(config), timeout_s=420.0)
        assert up.returncode == 0, up.stdout + up.stderr
        yield instance
    finally:
        down = instance.command("down")
    assert down.returncode == 0, down.stderr


def _small_batches(path: Path) -> None:
    """Four sequences a replica: two cores then see a surge with two dozen callers."""
    plan = json.loads(path.read_text())
    for pool in plan["pools"]:
        pool["layout"]["max_num_seqs"] = pool["engine_args"]["max_num_seqs"] = 4
    path.write_text(json.dumps(plan))
