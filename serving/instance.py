"""Where does a running instance keep its state, and which processes are its own?

One directory per instance: process id, progress, plan, decision log, output. Stopping ends exactly
what the instance started and nothing else on the machine. A process is the instance's own if it
carries `SHARDWISE_INSTANCE` in its environment, or if the head process recorded it as a descendant
(Ray and vLLM rename themselves, which wipes the environment that the system shows).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

INSTANCE_VARIABLE = "SHARDWISE_INSTANCE"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far `up` has come. `phase`: starting, ready, stopping, failed, stopped.

    `exit_code`: of the error, where it failed.
    """

    phase: str
    doing: str
    endpoint: str = ""
    dashboard: str = ""
    ray_address: str = ""
    namespace: str = ""
    models: tuple[str, ...] = ()
    exit_code: int = 0
    since_s: float = field(default_factory=time.time)


class Instance:
    """The state directory of one instance."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def default(cls) -> Instance:
        """$SHARDWISE_HOME/instance, or the user's state directory."""
        home = os.environ.get("SHARDWISE_HOME")
        base = Path(home) if home else Path.home() / ".local" / "state" / "shardwise"
        return cls(base / "instance")

    @property
    def plan_path(self) -> Path:
        """The plan being served."""
        return self.directory / "plan.json"

    @property
    def config_path(self) -> Path:
        """The serving configuration in use, as it was given."""
        return self.directory / "serve.yaml"

    @property
    def decisions_path(self) -> Path:
        """The controller's decision log."""
        return self.directory / "decisions.jsonl"

    @property
    def output_path(self) -> Path:
        """What the instance's processes print."""
        return self.directory / "output.log"

    @property
    def mark(self) -> str:
        """The value every process of this instance carries in its environment."""
        return str(self.directory.resolve())

    def write(self, progress: Progress) -> None:
        """Publish progress; readers never see half of it."""
        self.replace("progress.json", json.dumps(asdict(progress)))

    def progress(self) -> Progress | None:
        """The last progress, None if there never was any."""
        try:
            data: dict[str, Any] = json.loads((self.directory / "progress.json").read_text())
            return Progress(**{**data, "models": tuple(data["models"])})
        except (OSError, ValueError, KeyError, TypeError):
            return None  # none yet, or of another release

    def write_pid(self, pid: int) -> None:
        """Record the head process."""
        self.replace("head.pid", str(pid))

    def head(self) -> psutil.Process | None:
        """The head process if it lives and is ours."""
        try:
            process = psutil.Process(int((self.directory / "head.pid").read_text()))
            return process if self._is_ours(process) else None
        except (OSError, ValueError, psutil.Error):
            return None

    def record(self, descendants: Iterable[psutil.Process]) -> None:
        """Remember processes of the instance; a later start time under the same id is another."""
        born = {}
        for process in descendants:
            with contextlib.suppress(psutil.Error):
                born[process.pid] = process.create_time()
        self.replace("processes.json", json.dumps(born))

    def processes(self) -> list[psutil.Process]:
        """All living processes of the instance, the caller and its parents excepted."""
        own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
        recorded = self._recorded()
        return [
            process
            for process in psutil.process_iter()
            if process.pid not in own
            and (self._is_ours(process) or _born(process) == recorded.get(process.pid))
        ]

    def sweep(self, *, grace_s: float) -> int:
        """End what is left of the instance: politely, then not. Returns how many there were."""
        left = self.processes()
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        _, alive = psutil.wait_procs(left, timeout=grace_s)
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(alive, timeout=grace_s)
        return len(left)

    def _recorded(self) -> dict[int, float]:
        try:
            born = json.loads((self.directory / "processes.json").read_text())
        except (OSError, json.JSONDecodeError):
            return {}
        return {int(pid): float(time_s) for pid, time_s in born.items()}

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return process.environ().get(INSTANCE_VARIABLE) == self.mark
        except (psutil.Error, OSError):
            return False

    def replace(self, name: str, text: str) -> None:
        """Write a file of the directory; readers never see half of it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        partial = self.directory / f".{name}.{os.getpid()}"
        partial.write_text(text)
        partial.replace(self.directory / name)


def _born(process: psutil.Process) -> float:
    try:
        return float("nan") if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return float("nan")
