"""What `up` refuses before anything is started, and how it says so."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose bundled model is there as far as `up` looks before it starts anything."""
    model = tmp_path / "home" / "models" / "smollm2-135m-instruct"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    return tmp_path / "home"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of a plan for two CPU cores."""
    path = tmp_path_factory.mktemp("planned") / "plan.json"
    made = shardwise(
        path.parent,
        *("plan", "--model", "smollm2-135m-instruct", "--cluster", "1x2xcpu", "--isl", "64"),
        *("--osl", "32", "--max-model-len", "256", "--out", str(path)),
    )
    assert made.returncode == 0, made.stderr
    return path.read_text()


@pytest.fixture
def plan(tmp_path: Path, planned: str) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(planned)
    return path


def shardwise(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "SHARDWISE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def refused(home: Path, *arguments: str) -> str:
    """The error `up` leaves with: exit code 2, one line, no traceback."""
    result = shardwise(home, "up", *arguments)
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    return result.stderr


def test_a_plan_that_is_not_there(home: Path) -> None:
    assert "cannot be read" in refused(home, "nowhere.json")


def test_a_plan_that_is_not_json(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text("{")
    assert "is not JSON (line 1" in refused(home, str(path))


def test_a_plan_with_a_wrong_field(home: Path, plan: Path) -> None:
    data = json.loads(plan.read_text())
    data["pools"][0]["layout"]["tp"] = 0
    plan.write_text(json.dumps(data))
    assert "pools.0.layout.tp" in refused(home, str(plan))


def test_a_plan_of_another_version(home: Path, plan: Path) -> None:
    data = json.loads(plan.read_text())
    data["version"] = 7
    plan.write_text(json.dumps(data))
    assert "this release reads version 1" in refused(home, str(plan))


def test_a_plan_with_data_parallel_attention(home: Path, plan: Path) -> None:
    data = json.loads(plan.read_text())
    data["pools"][0]["layout"].update(dp=2, moe_ep=2)
    plan.write_text(json.dumps(data))
    assert "--max-dp 1" in refused(home, str(plan))


def test_a_layout_that_its_model_does_not_split_over(home: Path, plan: Path) -> None:
    data = json.loads(plan.read_text())
    data["pools"][0]["layout"].update(tp=2, moe_tp=2)
    data["pools"][0]["engine_args"]["tensor_parallel_size"] = 2
    plan.write_text(json.dumps(data))
    told = " ".join(refused(home, str(plan)).split())
    assert "pool 'main' of the plan: 9 attention heads do not split over tp = 2" in told
    assert "Fix: use tp = 1." in told


def test_more_devices_than_the_machine_has(home: Path, plan: Path) -> None:
    data = json.loads(plan.read_text())
    data["pools"][0]["replicas"].update(initial=4096, maximum=4096)
    plan.write_text(json.dumps(data))
    assert "needs 4096 x cpu to start" in refused(home, str(plan))


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has the GPUs")
def test_devices_of_another_kind(home: Path, plan: Path) -> None:
    data = json.loads(plan.read_text())
    data["cluster"].update(device="h200", device_kind="gpu")
    plan.write_text(json.dumps(data))
    assert "--cluster local" in refused(home, str(plan))


def test_a_model_source_that_is_nowhere(home: Path, plan: Path) -> None:
    data = json.loads(plan.read_text())
    data["pools"][0]["model"]["source"] = "no-such-model"
    plan.write_text(json.dumps(data))
    assert "--model-source" in refused(home, str(plan))


def test_a_model_directory_without_weights(home: Path, plan: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    data = json.loads(plan.read_text())
    data["pools"][0]["model"]["source"] = str(empty)
    plan.write_text(json.dumps(data))
    assert "no weights" in refused(home, str(plan))


def test_set_up_not_run(tmp_path: Path, plan: Path) -> None:
    assert "shardwise setup" in refused(tmp_path / "elsewhere", str(plan))


def test_a_wrong_configuration_file(home: Path, plan: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text("http: {prot: 80}")
    assert "http.prot" in refused(home, str(plan), "--config", str(config))


def test_impossible_steering(home: Path, plan: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text("steering: {target_utilisation: 0.3, down_utilisation: 0.6}")
    assert "down_utilisation" in refused(home, str(plan), "--config", str(config))


def test_a_port_in_use(home: Path, plan: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = tmp_path / "serve.yaml"
        config.write_text(f"http: {{port: {port}}}")
        assert f"cannot listen on 127.0.0.1:{port}" in refused(
            home, str(plan), "--config", str(config)
        )


def test_a_dashboard_is_no_cluster_to_serve_on(home: Path, plan: Path) -> None:
    said = refused(home, str(plan), "--address", "http://head:8265")
    assert "http://head:8265 is a dashboard, and a service is no job" in said


@pytest.mark.parametrize("command", ["status", "chat"])
def test_nothing_is_running(home: Path, command: str) -> None:
    result = shardwise(home, command)
    assert result.returncode == 4
    assert "no service is running here" in result.stderr


def test_down_with_nothing_running(home: Path) -> None:
    result = shardwise(home, "down")
    assert (result.returncode, result.stdout.strip()) == (0, "nothing is running")
