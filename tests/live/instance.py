"""A real instance for tests: `shardwise up` on a plan, with steering fast enough to watch."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml
from prometheus_client.parser import text_string_to_metric_families

REPOSITORY = Path(__file__).resolve().parents[2]

# Delays of seconds instead of minutes: what is tested is the order of events, not their pace.
FAST_STEERING = {
    "tick_s": 1.0,
    "cold_start_s": 40.0,
    "up_delay_s": 2.0,
    "down_delay_s": 8.0,
    "to_zero_delay_s": 12.0,
    "tier_enter_s": 3.0,
    "tier_leave_s": 4.0,
    "tier_probe_s": 8.0,
    "wait_limit_s": 20.0,
    "light_release_s": 5.0,
    "faults": {"failed_starts": 100},  # replicas are killed young here
}


def until(condition: Callable[[], bool], *, limit_s: float, what: str) -> float:
    """Wait for a condition; returns the seconds it took. One that gets no answer does not hold."""
    started_s, refused = time.monotonic(), ""
    while time.monotonic() - started_s < limit_s:
        try:
            if condition():
                return time.monotonic() - started_s
            refused = ""
        except httpx.HTTPError as error:
            refused = f" ({error!r})"
        time.sleep(0.1)
    raise AssertionError(f"not within {limit_s} s: {what}{refused}")


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True)
class LiveInstance:
    """A running instance and how to reach it. `key`: what its callers send, if any."""

    home: Path
    port: int
    key: str | None = None

    @property
    def config(self) -> Path:
        return self.home / "serve.yaml"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        """Of a request."""
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    def command(
        self, *arguments: str, timeout_s: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a `shardwise` command against this instance."""
        return subprocess.run(
            [sys.executable, "-m", "cli.main", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "SHARDWISE_HOME": str(self.home)},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def status(self) -> dict[str, Any]:
        """What a gateway says of the instance. Raises httpx.HTTPError while none knows."""
        data: dict[str, Any] = (
            httpx.get(f"{self.url}/status", timeout=20.0).raise_for_status().json()
        )
        return data

    def pool(self, name: str) -> dict[str, Any]:
        return next(pool for pool in self.status()["pools"] if pool["pool"] == name)

    def answering(self, pool: str) -> int:
        """Replicas that answer, as far as the controller knows: it begins with nothing."""
        return int(self.pool(pool)["ready"] or 0)

    def metric(self, name: str) -> float:
        """The sum of a series of the gateway."""
        text = httpx.get(f"{self.url}/metrics", timeout=30.0).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        )

    def processes(self, title: str) -> list[psutil.Process]:
        """Processes of the instance that call themselves so."""
        head = psutil.Process(int((self.home / "instance" / "head.pid").read_text()))
        return [p for p in head.children(recursive=True) if title in _title(p)]

    def replicas_alive(self, pool: str) -> list[psutil.Process]:
        """Replicas of a pool; the status has those, too, that ended within the last seconds."""
        found = []
        for replica in self.status()["replicas"]:
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [psutil.Process(replica["pid"])] if replica["pool"] == pool else []
        return found

    @property
    def decisions(self) -> Path:
        """The decision log."""
        return self.home / "instance" / "decisions.jsonl"

    def progress(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.home / "instance" / "progress.json").read_text())
        return data


def _title(process: psutil.Process) -> str:
    try:
        title = " ".join(process.cmdline())
        # A forked engine core cannot always name itself: then it looks like its fork server.
        forked = "vllm.v1.engine.core" in title and process.parents()[0].cmdline()
    except psutil.Error:  # it has just ended
        return ""
    return "VLLM::EngineCore" if forked and " ".join(forked) == title else title


def link_models(home: Path) -> None:
    """Let an instance with its own home use the models that set-up has made."""
    from serving.bundled import model_cache

    (home / "models").symlink_to(model_cache(), target_is_directory=True)


def write_config(
    path: Path,
    *,
    port: int,
    steering: Mapping[str, object],
    keys_file: Path | None = None,
    gateways: int = 1,
    limits: Mapping[str, object] | None = None,
) -> Path:
    """A serving configuration file. `limits`: beside those that every test has."""
    config = {
        "http": {"port": port, "gateways": gateways},
        "limits": {"queue_wait_s": 90.0, "output_cap": 24, **(limits or {})},
        "steering": dict(steering),
        "access": {"keys_file": None if keys_file is None else str(keys_file)},
    }
    path.write_text(yaml.safe_dump(config))
    return path
