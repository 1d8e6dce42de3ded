import asyncio
import os
import signal
import subprocess
import sys

import psutil
import pytest

from serving.control.repairs import Repairs
from serving.control.replica_end import end_processes
from serving.control.scaler import ServeReplica

_FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_stopped_process_and_all_below_it_are_ended() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _FAMILY], stdout=subprocess.PIPE, start_new_session=True
    )
    assert parent.stdout is not None
    with parent, parent.stdout as told:
        child = psutil.Process(int(told.readline()))
        os.kill(parent.pid, signal.SIGSTOP)
        assert end_processes(parent.pid, title="not this one") == 0
        assert parent.poll() is None
        assert end_processes(parent.pid, title=sys.executable) == 2
        assert parent.wait(timeout=10) == -signal.SIGKILL
        psutil.wait_procs([child], timeout=10)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_process_that_is_gone_is_no_error() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert end_processes(gone.pid, title=sys.executable) == 0


async def test_a_replica_is_ended_once_however_often_it_is_ordered() -> None:
    ended: list[str] = []
    release = asyncio.Event()

    async def end(replica: ServeReplica) -> None:
        ended.append(replica.replica_id)
        await release.wait()

    repairs = Repairs(end=end, reroute_s=0.0)
    for name in ("a", "b", "a"):
        repairs.restart(ServeReplica(replica_id=name, state="RUNNING"))
    await asyncio.sleep(0.01)
    assert ended == ["a", "b"]
    release.set()
    await asyncio.sleep(0.01)
    repairs.restart(ServeReplica(replica_id="a", state="RUNNING"))
    await asyncio.sleep(0.01)
    assert ended == ["a", "b", "a"], "one that was not ended may be ordered anew"


async def test_one_that_cannot_be_ended_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[str] = []

    async def end(replica: ServeReplica) -> None:
        if replica.replica_id == "a":
            raise RuntimeError("its node is gone")
        ended.append(replica.replica_id)

    repairs = Repairs(end=end, reroute_s=0.0)
    for name in ("a", "b"):
        repairs.restart(ServeReplica(replica_id=name, state="RUNNING"))
    await asyncio.sleep(0.01)
    assert ended == ["b"]
    assert "its node is gone" in caplog.text
