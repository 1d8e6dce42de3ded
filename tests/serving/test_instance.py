"""An instance ends its own processes, whatever they call themselves, and no other."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from serving.instance import INSTANCE_VARIABLE, Instance, Progress

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@contextmanager
def sleeper(mark: str | None = None) -> Iterator[psutil.Process]:
    env = {INSTANCE_VARIABLE: mark} if mark else {}
    with subprocess.Popen(SLEEP, env=env) as started:
        process = psutil.Process(started.pid)
        try:
            yield process
        finally:
            started.kill()


def alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_marked_processes_are_swept_and_others_stay(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "instance")
    with sleeper(instance.mark) as ours, sleeper() as other, sleeper("another") as third:
        time.sleep(0.2)
        assert [p.pid for p in instance.processes()] == [ours.pid]
        assert instance.sweep(grace_s=5.0) == 1
        assert not alive(ours)
        assert alive(other)
        assert alive(third)


def test_recorded_processes_are_swept_without_a_mark(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "instance")
    with sleeper() as renamed, sleeper() as other:
        instance.record([renamed])
        assert [p.pid for p in instance.processes()] == [renamed.pid]
        instance.sweep(grace_s=5.0)
        assert alive(other)


def test_a_reused_process_id_is_not_ours(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "instance")
    with sleeper() as process:
        instance.record([process])
        path = instance.directory / "processes.json"
        path.write_text(path.read_text().replace(str(process.create_time()), "1.0"))
        assert instance.processes() == []


def test_progress_round_trip(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "instance")
    assert instance.progress() is None
    progress = Progress(phase="ready", doing="serving", models=("a", "b"))
    instance.write(progress)
    assert instance.progress() == progress


def test_no_head_where_none_was_recorded(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "instance")
    assert instance.head() is None
    instance.write_pid(1)  # lives, but is not ours
    assert instance.head() is None
