"""How is what is measured started, and how ended? By id: it, its descendants and nothing else."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import uvloop

from bench.gateway_parts.answers import question
from bench.gateway_parts.load import Target, press

REPOSITORY = Path(__file__).resolve().parents[2]
_LAST_LINES = 8
_GRACE_S = 20.0


class NotMeasuredError(Exception):
    """A gateway that cannot be measured, and why."""


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def own_environment(**more: str) -> dict[str, str]:
    """For processes that run this repository's code."""
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


def module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module of this repository."""
    return [sys.executable, "-m", name, *arguments]


@contextmanager
def running(
    command: Sequence[str],
    *,
    target: Target,
    environment: Mapping[str, str],
    log: Path,
    patience_s: float = 180.0,
) -> Iterator[Target]:
    """The process while it answers. NotMeasuredError with its last words if it never does."""
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise NotMeasuredError(f"it does not start: {error}") from error
        try:
            _wait_until_it_answers(process, target, log=log, patience_s=patience_s)
            yield target
        finally:
            end(process)


def _wait_until_it_answers(
    process: subprocess.Popen[bytes], target: Target, *, log: Path, patience_s: float
) -> None:
    deadline_s = time.monotonic() + patience_s
    said = "nothing"
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise NotMeasuredError(f"it ended with {process.returncode}: {last_words(log)}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", target.port), 1):
            body = question(target.model, stream=True)
            tally = uvloop.run(press(target, body, width=1, seconds=1.0))
            if tally.last_s and not tally.failures:
                return
            said = next(iter(tally.failures), "nothing")
        time.sleep(0.25)
    words = last_words(log)
    raise NotMeasuredError(f"no answer within {patience_s:.0f} s; it said: {said}; {words}")


def last_words(log: Path) -> str:
    """The end of what a process has printed."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return " | ".join(line.strip() for line in lines[-_LAST_LINES:])[-600:] or "it said nothing"


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and end what is left of it."""
    with contextlib.suppress(psutil.Error):
        family = [
            psutil.Process(process.pid),
            *psutil.Process(process.pid).children(recursive=True),
        ]
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        # It may have ended some itself, and they may be gone by now.
        for left in family:
            with contextlib.suppress(psutil.Error):
                left.kill()
        psutil.wait_procs(family, timeout=5.0)
    process.wait()
