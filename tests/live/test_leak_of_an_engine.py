"""A real engine whose replica leaks is replaced under load, and what it leaves is swept.

The leak is a process beside the engine that carries the replica's mark, as its own children do.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from serving.keeper.mark import REPLICA_VARIABLE
from tests.live.decided import decided, replicas
from tests.live.instance import FAST_STEERING, LiveInstance, until
from tests.live.load import Load
from tests.live.plain_instance import plain_instance

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

RATE = 8 * 2**20  # bytes per second
MOST = 2**30  # a leak that has been found need not grow for as long as another replica starts
BALLOON = f"""
import time
leaked = []
while True:
    if len(leaked) * {RATE // 4} < {MOST}:
        leaked.append(b"x" * {RATE // 4})
    time.sleep(0.25)
"""
STEERING = FAST_STEERING | {
    "cold_start_s": 240.0,
    "leaks": {
        "warmup_s": 10.0,
        "window_s": 20.0,
        "slope_bytes_per_h": RATE * 3600.0 / 4.0,
        "drain_s": 120.0,
        "rest_s": 10.0,
    },
    "keeper": {"look_s": 1.0, "orphan_grace_s": 5.0},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveInstance]:
    with plain_instance(
        tmp_path_factory.mktemp("home"),
        slots=4,
        steering=STEERING,
        maximum=2,
        limits={"queue_wait_s": 300.0},
    ) as instance:
        yield instance


def mark_of(pid: int) -> str:
    """What the children of a replica carry."""
    children = psutil.Process(pid).children(recursive=True)
    marks = {child.environ().get(REPLICA_VARIABLE, "") for child in children}
    print({child.name(): child.environ().get(REPLICA_VARIABLE) for child in children})
    (mark,) = marks - {""}
    return mark


async def test_an_engine_whose_replica_leaks_is_replaced(service: LiveInstance) -> None:
    (victim,) = service.status()["replicas"]
    name = victim["replica_id"]
    mark = mark_of(victim["pid"])
    assert mark.endswith(f"/{name}")
    until(lambda: bool(replicas(service)[name]["host_bytes"]), limit_s=60, what="memory")
    used = replicas(service)[name]["host_bytes"]
    print(f"one replica uses {used / 2**20:.0f} MiB")
    assert used > 2**27, "the engine core is counted, not only the replica"

    load = Load(url=service.url, callers=2, limit_s=600.0)
    loading = asyncio.create_task(load.run())
    env = {**os.environ, REPLICA_VARIABLE: mark}
    with subprocess.Popen([sys.executable, "-c", BALLOON], env=env) as balloon:
        try:
            started_s = time.monotonic()
            await asyncio.to_thread(
                until,
                lambda: bool(found := replicas(service)) and name not in found,
                limit_s=500,
                what="it is replaced",
            )
            print(f"replaced after {time.monotonic() - started_s:.0f} s")
            await asyncio.to_thread(balloon.wait, 60)
            print(f"swept after {time.monotonic() - started_s:.0f} s")
        finally:
            balloon.kill()
            load.stop()
    outcome = await loading
    assert set(outcome.statuses) == {200}
    assert not outcome.broken
    assert outcome.statuses[200] > 4
    for action in ("retire", "restart"):
        assert [decision["subject"] for decision in decided(service, action)] == [name]
    assert service.metric("shardwise_swept") >= 1
