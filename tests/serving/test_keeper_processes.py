"""Processes of replicas on this machine, with processes made for the purpose."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import pytest

from serving.keeper.account import Roll
from serving.keeper.mark import application_id, mark, replica_of
from serving.keeper.node_keeper import NodeKeeper
from serving.keeper.processes import Owned, ProcessTable, memory, signal_to
from tests.serving.fake_nvml import Event, FakeNvml, Process

APP = application_id("secret")
SLEEP = "import time; print(flush=True); time.sleep(120)"
# A child that ignores being asked, and tells its id; its parent then waits.
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print(flush=True); time.sleep(120)"
)
PARENT = (
    "import subprocess, sys, time; "
    f"child = subprocess.Popen([sys.executable, '-c', {SLEEP!r}], stdout=subprocess.PIPE); "
    "child.stdout.readline(); print(child.pid, flush=True); time.sleep(120)"
)


@contextmanager
def running(code, *, replica=None):
    """A process, its first line of output read: it has come as far as its sleep."""
    env = {**os.environ, **({} if replica is None else mark(APP, replica))}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield process, line.strip()
        finally:
            process.kill()


def gone(pid):
    until_s = time.monotonic() + 20
    while time.monotonic() < until_s:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def owners(table, roots=None):
    return {owned.pid: owned.replica_id for owned in table.look(roots or {})}


def test_a_mark_names_its_application_and_replica():
    assert replica_of(mark(APP, "abc"), APP) == "abc"
    assert replica_of(mark("other", "abc"), APP) is None
    assert replica_of({}, APP) is None
    assert application_id("another secret") != APP
    assert "secret" not in APP


def test_processes_are_found_by_their_parents_and_by_their_mark():
    table = ProcessTable(APP)
    with running(PARENT) as (parent, child), running(SLEEP, replica="b") as (marked, _):
        found = owners(table, {"a": (parent.pid,)})
        assert found[parent.pid] == found[int(child)] == "a"
        assert found[marked.pid] == "b"
        assert owners(ProcessTable("another"), {}) == {}
        os.kill(int(child), signal.SIGKILL)


def test_an_orphan_is_still_its_replicas():
    table = ProcessTable(APP)
    with running(PARENT) as (parent, child):
        table.look({"a": (parent.pid,)})
        parent.kill()
        parent.wait()
        assert owners(table) == {int(child): "a"}
        os.kill(int(child), signal.SIGKILL)
    assert gone(int(child))
    assert owners(table) == {}


def test_memory_grows_with_what_is_written_to():
    with running("data = b'x' * 50_000_000\n" + SLEEP) as (large, _), running(SLEEP) as (small, _):
        assert memory(large.pid) - memory(small.pid) > 40_000_000
    assert memory(large.pid) == 0.0, "it has ended"


def test_a_process_that_took_over_the_number_is_left_alone():
    with running(SLEEP) as (process, _):
        other = Owned(pid=process.pid, born_s=1.0, replica_id="a")
        assert not signal_to(other, signal.SIGKILL)
        assert process.poll() is None


async def test_a_keeper_tells_what_each_replica_uses():
    with ExitStack() as stack:
        one, _ = stack.enter_context(running("data = b'x' * 50_000_000\n" + SLEEP))
        two, _ = stack.enter_context(running(SLEEP, replica="b"))
        nvml = FakeNvml(processes={0: [Process(one.pid, 2**30)]})
        keeper = NodeKeeper(APP, orphan_grace_s=30.0, nvml=nvml)
        roll = Roll(living=frozenset({"a", "b"}), roots={"a": (one.pid,)})
        uses = (await keeper.look(roll)).replicas
        assert uses["a"].host_bytes > uses["b"].host_bytes + 40_000_000
        assert uses["a"].device_bytes == 2**30
        assert uses["b"].device_bytes != uses["b"].device_bytes, "unknown, not zero"
        nvml.events = [Event(0, FakeNvml.nvmlEventTypeXidCriticalError, 79)]
        for _ in range(2):  # a fault stays the replica's
            account = await keeper.look(roll)
            assert account.replicas["a"].device_fault.startswith("GPU 0: XID 79")
            assert account.replicas["b"].device_fault == ""
        del two


async def test_what_is_left_of_a_replica_is_ended_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("serving.keeper.orphans.PATIENCE_S", 0.0)
    keeper = NodeKeeper(APP, orphan_grace_s=0.0, nvml=FakeNvml())
    with ExitStack() as stack:
        core, _ = stack.enter_context(running(STUBBORN, replica="gone"))
        living, _ = stack.enter_context(running(SLEEP, replica="living"))
        foreign, _ = stack.enter_context(running(SLEEP))
        account = await keeper.look(Roll(living=frozenset({"living"})))
        (swept,) = account.swept
        assert (swept.pid, swept.replica_id) == (core.pid, "gone")
        assert swept.host_bytes > 0
        assert core.poll() is None, "asked, it did not end"
        await keeper.look(Roll(living=frozenset({"living"})))
        assert core.wait(timeout=20) == -signal.SIGKILL
        assert living.poll() is foreign.poll() is None


async def test_nothing_is_ended_while_nobody_knows_who_lives():
    keeper = NodeKeeper(APP, orphan_grace_s=0.0, nvml=FakeNvml())
    with running(SLEEP, replica="a") as (process, _):
        for _ in range(3):
            assert (await keeper.look(Roll(living=None))).swept == ()
        assert process.poll() is None


async def test_at_the_end_all_of_ours_go(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("serving.keeper.node_keeper.PATIENCE_S", 0.5)
    keeper = NodeKeeper(APP, orphan_grace_s=30.0, nvml=FakeNvml())
    with ExitStack() as stack:
        soft, _ = stack.enter_context(running(SLEEP, replica="a"))
        hard, _ = stack.enter_context(running(STUBBORN, replica="b"))
        foreign, _ = stack.enter_context(running(SLEEP))
        assert await keeper.end() == 2
        assert soft.wait(timeout=20) == -signal.SIGTERM
        assert hard.wait(timeout=20) == -signal.SIGKILL
        assert foreign.poll() is None


async def test_a_blocked_nvml_costs_the_devices_and_not_the_memory(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("serving.keeper.node_keeper.DEVICES_PATIENCE_S", 0.1)
    keeper = NodeKeeper(APP, orphan_grace_s=30.0, nvml=FakeNvml())
    monkeypatch.setattr(keeper._devices, "look", lambda: time.sleep(1.0))
    with running(SLEEP, replica="a"):
        account = await keeper.look(Roll(living=frozenset({"a"})))
        assert account.replicas["a"].host_bytes > 0
        assert "has not answered" in account.trouble
