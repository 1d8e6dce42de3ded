"""Ctrl-C while the service comes up leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serving.instance import Instance
from tests.live.instance import REPOSITORY, LiveInstance, free_port, link_models, write_config

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


def test_interrupted_up_leaves_no_process(tmp_path: Path) -> None:
    instance = LiveInstance(tmp_path / "home", free_port())
    instance.home.mkdir()
    link_models(instance.home)
    plan = tmp_path / "plan.json"
    planned = instance.command(
        *("plan", "--model", "smollm2-135m-instruct", "--cluster", "local"),
        *("--isl", "64", "--osl", "32", "--max-model-len", "256", "--out", str(plan)),
    )
    assert planned.returncode == 0, planned.stderr
    write_config(instance.config, port=instance.port, steering={})
    up = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "up", str(plan), "--config", str(instance.config)],
        cwd=REPOSITORY,
        env={**os.environ, "SHARDWISE_HOME": str(instance.home)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert up.stdout is not None
    for line in up.stdout:
        if "starting Serve" in line:
            break
    time.sleep(6.0)  # well into loading the model: Ray, Serve, replica and engine processes live
    state = Instance(instance.home / "instance")
    assert len(state.processes()) > 5
    up.send_signal(signal.SIGINT)
    output = up.stdout.read()
    assert up.wait(timeout=120) == 130
    assert "interrupted" in output
    assert state.processes() == []
    up.stdout.close()
