"""A search on a cluster of two nodes: both propose, losses cost a round at most, jobs repeat."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="needs the serve extra")

from ray.cluster_utils import Cluster  # noqa: E402

from rl_search import train  # noqa: E402
from rl_search.archive import Archive  # noqa: E402
from rl_search.network import NetworkOptions  # noqa: E402
from rl_search.train import PpoOptions, Round, search  # noqa: E402
from tests.ray_folder import ray_folder  # noqa: E402
from tests.rl_search import searches  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = PpoOptions(
    samples=16, chunks=2, runners=2, network=NetworkOptions(width=32, head_width=16)
)
BUDGET = 160

pytestmark = [pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def dashboard():
    """URL of the dashboard, and address.

    The cluster has a directory of its own that names it, as after `ray start`: a job finds `auto`
    there, or else any cluster of the machine.
    """
    port = free_port()
    with ray_folder() as own:
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 2,
                "include_dashboard": True,
                "dashboard_port": port,
                "dashboard_agent_listen_port": free_port(),
                "temp_dir": own,
            },
        )
        Path(own, "ray_current_cluster").write_text(cluster.address)
        cluster.add_node(num_cpus=2)
        yield f"http://127.0.0.1:{port}", cluster.address
        cluster.shutdown()


@pytest.fixture(scope="module")
def connected(dashboard):
    _, address = dashboard
    ray.init(address, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}})
    yield
    ray.shutdown()


def searched() -> tuple[Archive, list[Round]]:
    archive, rounds = Archive(searches.cost_model(), budget=BUDGET), []
    search(archive, 1, OPTIONS, saved=rounds.append)
    return archive, rounds


def test_both_nodes_propose_and_do_so_again(connected):
    archive, rounds = searched()
    assert archive.calls == BUDGET
    assert all(len(round_.nodes) == 2 for round_ in rounds)
    again, _ = searched()
    assert (again.actions == archive.actions).all()


def test_a_killed_env_runner_costs_no_more_than_its_round(connected, monkeypatch):
    play, before_, after_ = train._Table.play, [], []

    def killing(self, before):
        if before.number == 2:
            before_.append(self._archive.calls)
            os.kill(self._runners(lambda _: os.getpid())[0], signal.SIGKILL)
        found = play(self, before)
        if before.number == 2:
            after_.append(self._archive.calls)
        return found

    monkeypatch.setattr(train._Table, "play", killing)
    archive, rounds = searched()
    assert archive.calls == BUDGET
    assert archive.best is not None
    assert before_[0] <= after_[0] <= before_[0] + OPTIONS.samples
    assert len(rounds) >= BUDGET // OPTIONS.samples


def test_a_submitted_job_uses_both_nodes_and_gives_the_same_plan_again(dashboard, tmp_path):
    made = []
    for number in range(2):
        path = tmp_path / f"run{number}.json"
        submitted = subprocess.run(
            [
                *(str(Path(sys.executable).parent / "ray"), "job", "submit"),
                *("--address", dashboard[0], "--", sys.executable, "-m", "cli.main", "search"),
                *("--address", "auto", "--model", "qwen3-30b-a3b", "--cluster", "1x8xH100"),
                *("--isl", "2000", "--osl", "300", "--tpot", "50ms", "--budget", "64"),
                *("--samples", "16", "--chunks", "2", "--json", str(path)),
                *("--out", str(tmp_path / f"plan{number}.json")),
                *("--checkpoint", str(tmp_path / f"kept{number}")),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert submitted.returncode == 0, submitted.stdout + submitted.stderr
        assert "64 of 64 calls" in submitted.stdout
        made.append(json.loads(path.read_text()))
    assert [run["nodes"] for run in made] == [2, 2]
    assert made[0]["best"]["plan"] == made[1]["best"]["plan"]
    plans = [(tmp_path / f"plan{number}.json").read_text() for number in range(2)]
    assert plans[0] == plans[1]
