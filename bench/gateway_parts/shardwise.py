"""Our gateway for the benchmark: planned, configured and started as `shardwise up` does it.

One engine replica, whose engine is fake; nothing is degraded or scaled while it is measured.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from bench.gateway_parts.load import Target
from bench.gateway_parts.process import (
    NotMeasuredError,
    free_port,
    module,
    own_environment,
    running,
)
from serving.bundled import HEAVY, bundled_path
from serving.instance import Instance

_NEVER_S = 1e6
_SLOTS = 256  # more than are ever asked for at once


@contextmanager
def shardwise(directory: Path) -> Iterator[Target]:
    """It, while it answers."""
    instance = Instance(directory / "instance")
    instance.directory.mkdir(parents=True)
    _plan(instance.plan_path)
    port = free_port()
    never = dict.fromkeys(("tier_enter_s", "tier_leave_s", "tier_probe_s"), _NEVER_S)
    config = {"http": {"port": port}, "steering": {"mode": "advisory", **never}}
    instance.config_path.write_text(yaml.safe_dump(config))
    target = Target(port=port, model=HEAVY)
    command = module("bench.gateway_parts.shardwise_head", str(instance.directory))
    environment = own_environment(SHARDWISE_INSTANCE=instance.mark)
    log = directory / "shardwise.log"
    with (
        _reason(instance),
        running(command, target=target, environment=environment, log=log) as answering,
    ):
        yield answering


@contextmanager
def _reason(instance: Instance) -> Iterator[None]:
    """Put what the head process gives as the reason before its last words."""
    try:
        yield
    except NotMeasuredError as error:
        progress = instance.progress()
        raise NotMeasuredError(f"{progress.doing if progress else 'no head'}; {error}") from error


def _plan(path: Path) -> None:
    model = bundled_path(HEAVY)  # its tokenizer is used, its weights are not
    made = subprocess.run(
        module(
            "cli.main",
            *("plan", "--model", HEAVY, "--cluster", "local", "--isl", "64", "--osl", "16"),
            *("--max-replicas", "1", "--model-source", str(model), "--out", str(path)),
        ),
        env=own_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise NotMeasuredError(f"no plan: {made.stderr.strip()}")
    plan = json.loads(path.read_text())
    for pool in plan["pools"]:
        pool["layout"]["max_num_seqs"] = pool["engine_args"]["max_num_seqs"] = _SLOTS
        pool["expected"] = None  # of the real engine's cache: what is measured must not wait for it
    path.write_text(json.dumps(plan))
