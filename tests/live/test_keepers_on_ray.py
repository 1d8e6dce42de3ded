"""Keepers and their sweeps on a real Ray, with replicas that are made up: groups and actors."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ray = pytest.importorskip("ray", reason="needs the serve extra")

from serving.keeper.keepers import Keepers, KeeperSpec  # noqa: E402
from serving.keeper.mark import application_id  # noqa: E402
from serving.keeper.ray_cluster import KEEPER, RayCluster, end_keepers  # noqa: E402

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

APP = application_id("secret")
SPEC = KeeperSpec(
    application=APP,
    app="shardwise",
    namespace="keepers",
    orphan_grace_s=2.0,
    placement_timeout_s=1.0,
)
ENGINE = "data = b'x' * 50_000_000\nimport time; print(flush=True); time.sleep(300)"


class Replica:
    """Starts an engine in a session of its own, which Ray does not end with the replica."""

    def start(self) -> tuple[int, int]:
        self._engine = subprocess.Popen(
            [sys.executable, "-c", ENGINE], stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._engine.stdout is not None
        self._engine.stdout.readline()
        return os.getpid(), self._engine.pid


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    context = ray.init(
        "local", num_cpus=3, namespace="keepers", include_dashboard=True, log_to_driver=False
    )
    token = Path.home() / ".ray" / "auth_token"
    yield RayCluster(
        app=SPEC.app,
        application=APP,
        namespace=SPEC.namespace,
        orphan_grace_s=SPEC.orphan_grace_s,
        dashboard_url=f"http://{context.dashboard_url}",
        token=token.read_text().strip() if token.is_file() else None,
    )
    ray.shutdown()


def group(name: str, **bundle: float) -> Any:
    return ray.util.placement_group([bundle], "STRICT_PACK", name=name, lifetime="detached")


async def looked_until(keepers: Keepers, condition: Callable[[], bool], *, what: str) -> None:
    started_s = time.monotonic()
    while time.monotonic() - started_s < 90.0:
        await keepers.look()
        if condition():
            print(f"{what}: after {time.monotonic() - started_s:.1f} s")
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"not within 90 s: {what}; {keepers.kept}")


def left() -> set[str]:
    table = ray.util.placement_group_table().values()
    return {entry["name"] for entry in table if entry["state"] != "REMOVED"}


async def test_what_is_left_is_swept_and_what_cannot_be_placed_is_explained(
    cluster: RayCluster,
) -> None:
    alive, gone, stuck = (f"SERVE_REPLICA::shardwise#main#{n}" for n in ("alive", "gone", "stuck"))
    foreign = "SERVE_REPLICA::other#main#x"
    place = group(alive, CPU=1)
    group(gone, CPU=1)
    group(foreign, CPU=1)
    group(stuck, GPU=4)
    ray.get(place.ready())
    replica = ray.remote(Replica).options(
        num_cpus=0,
        scheduling_strategy=ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(place),
    )
    actor = replica.remote()
    pid, engine = ray.get(actor.start.remote())
    living: frozenset[str] | None = None
    keepers = Keepers(SPEC, cluster, living=lambda: living)

    await looked_until(
        keepers, lambda: keepers.kept.uses["alive"].host_bytes > 5e7, what="memory is known"
    )
    await looked_until(keepers, lambda: "main" in keepers.kept.unmet, what="unmet is explained")
    assert keepers.kept.unmet["main"] == (
        "bundle {'GPU': 4} of pool main fits no node: the freest has 0 of 0 GPU free, "
        "and none has 4 in all"
    )
    assert gone in left(), "nobody knows yet who lives"

    living = frozenset({"stuck"})
    await looked_until(keepers, lambda: gone not in left(), what="the group is removed")
    assert left() == {alive, foreign, stuck}
    assert psutil.pid_exists(engine), "its actor lives, whatever Serve's books say"

    os.kill(engine, signal.SIGSTOP)  # it holds its memory and does nothing
    os.kill(pid, signal.SIGKILL)
    await looked_until(
        keepers,
        lambda: not psutil.pid_exists(engine) or psutil.Process(engine).status() == "zombie",
        what="the orphan is ended",
    )
    (swept,) = keepers.kept.swept
    assert (swept.pid, swept.replica_id) == (engine, "alive")
    print(f"swept {swept.host_bytes / 2**20:.0f} MiB of a process {swept.age_s:.0f} s old")

    await asyncio.to_thread(end_keepers, SPEC.namespace)
    await asyncio.sleep(1.0)
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    assert not [name for name in names if name.startswith(KEEPER)]
