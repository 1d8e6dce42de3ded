"""An instance of Ray, Serve, gateway, controller and replicas, only the engines are scripted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil

from serving.instance import INSTANCE_VARIABLE, Instance
from tests.helm.plans import planned
from tests.live import scripted_engine
from tests.live.instance import (
    REPOSITORY,
    LiveInstance,
    free_port,
    link_models,
    until,
    write_config,
)

MODEL = "smollm2-135m-instruct"
REPLICAS = 3
SLOTS = 70  # of a replica
Bounds = Mapping[str, int]
_FIXED: Bounds = MappingProxyType(dict.fromkeys(("minimum", "initial", "maximum"), REPLICAS))
_HEAD = "from tests.live.scripted_replica import run_head; run_head()"


@dataclass(frozen=True)
class ScriptedInstance(LiveInstance):
    """A running instance whose engines are scripted."""

    ready: int = REPLICAS

    @property
    def state(self) -> Instance:
        return Instance(self.home / "instance")

    def running(self) -> int:
        """Requests that living engines are at, this moment."""
        return scripted_engine.running(self.state.directory)

    def replicas(self) -> list[int]:
        """Process ids of the replicas that live."""
        return [replica.pid for replica in self.replicas_alive("main")]

    def kill(self, pids: list[int]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def freeze(self, replica: psutil.Process) -> None:
        """Its engine makes no step any more; its process lives."""
        folder = self.state.directory / scripted_engine.FROZEN
        folder.mkdir(exist_ok=True)
        (folder / str(replica.pid)).touch()

    def whole(self) -> None:
        """Wait until every replica may be chosen."""
        ready = "shardwise_ready_replicas"
        until(lambda: self.metric(ready) == self.ready, limit_s=120, what="every replica ready")


@contextmanager
def scripted_instance(
    home: Path,
    *,
    replicas: Bounds = _FIXED,
    steering: Mapping[str, object] = MappingProxyType({}),
    head: str = _HEAD,
    gateways: int = 1,
    keys_file: Path | None = None,
    plan_changes: Mapping[str, object] = MappingProxyType({}),
) -> Iterator[ScriptedInstance]:
    """Served for as long as the context lasts: one pool.

    `head`: what the head process runs in the place of `serving.head`. `plan_changes`: sections of
    the plan that are others; `expected` is the pool's.
    """
    link_models(home)
    instance = ScriptedInstance(home, free_port(), ready=replicas["initial"])
    plan = planned(
        *(MODEL, "local", "--isl", "512", "--osl", "512"),
        *("--max-model-len", "2048", "--max-replicas", "1"),
    )
    state = instance.state
    state.directory.mkdir(parents=True)
    state.plan_path.write_text(_replicated(plan, replicas, plan_changes))
    write_config(
        state.config_path,
        port=instance.port,
        steering=steering,
        gateways=gateways,
        keys_file=keys_file,
    )
    with state.output_path.open("wb") as output:
        head = subprocess.Popen(
            [sys.executable, "-c", head, str(state.directory)],
            env=_environment(state),
            cwd=state.directory,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    reaper = threading.Thread(target=head.wait, daemon=True)  # or `down` would wait for a zombie
    reaper.start()
    try:
        until(lambda: _ready(state), limit_s=300, what="the instance is ready")
        instance.whole()
        yield instance
    finally:
        down = instance.command("down")
        reaper.join(timeout=30)
    assert down.returncode == 0, down.stderr


def _replicated(text: str, replicas: Bounds, changes: Mapping[str, object]) -> str:
    """The plan for so many replicas of `SLOTS` slots."""
    plan = json.loads(text)
    (pool,) = plan["pools"]
    pool["layout"]["max_num_seqs"] = SLOTS
    pool["expected"] = changes.get("expected")
    plan |= {name: section for name, section in changes.items() if name != "expected"}
    pool["replicas"] = dict(replicas)
    return json.dumps(plan)


def _ready(state: Instance) -> bool:
    progress = state.progress()
    if progress is None:
        return False
    assert progress.phase != "failed", progress.doing
    return progress.phase == "ready"


def _environment(state: Instance) -> dict[str, str]:
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        INSTANCE_VARIABLE: state.mark,
        "SHARDWISE_HOME": str(state.directory.parent),  # as the commands have it
        "PYTHONPATH": os.pathsep.join(paths),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }
