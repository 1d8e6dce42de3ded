"""Commands as jobs of a cluster of two nodes that asks for its token."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs the serve extra")

from tests.ray_backend.token_cluster import TOKEN, token_cluster

ROOT = Path(__file__).resolve().parents[2]
SEARCH = (
    *("search", "--model", "qwen3-30b-a3b", "--cluster", "1x8xH100", "--isl", "2000"),
    *("--osl", "300", "--tpot", "50ms", "--budget", "256", "--samples", "16", "--chunks", "2"),
)
TRAFFIC = ("--trace", "poisson:rate=2,count=50,isl=256,osl=32", "--seed", "3")

pytestmark = pytest.mark.timeout(400)


@dataclass(frozen=True)
class Client:
    """A machine that knows the cluster's dashboard and token; results go to `folder`."""

    folder: Path
    url: str
    token: str | None = TOKEN

    @property
    def _env(self) -> dict[str, str]:
        ours = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "RAY_ADDRESS")
        env = {name: value for name, value in os.environ.items() if name not in ours}
        token = {"RAY_AUTH_TOKEN": self.token} if self.token else {}
        own = {"SHARDWISE_HOME": str(self.folder / "home"), "HOME": str(self.folder)}
        return {**env, **own, **token, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}

    def run(self, *words: str, job: bool = False) -> subprocess.CompletedProcess[str]:
        address = ("--address", self.url) if job else ()
        return subprocess.run(
            [sys.executable, "-m", "cli.main", *words, *address],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )

    @contextmanager
    def following(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [sys.executable, "-m", "cli.main", *words, "--address", self.url],
            cwd=self.folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            yield process


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with token_cluster() as dashboard:
        yield dashboard


@pytest.fixture
def client(tmp_path, url) -> Client:
    return Client(tmp_path, url)


@pytest.mark.parametrize(
    ("token", "said"), [(None, "no token was found here"), ("wrong", "is not the cluster's")]
)
def test_who_has_no_token_of_the_cluster_submits_nothing(tmp_path, url, token, said):
    refused = Client(tmp_path, url, token).run(*SEARCH, job=True)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_search_is_submitted_followed_left_cancelled_and_resumed_to_the_plan_of_here(client):
    with client.following(*SEARCH, "--json", "run.json", "--report", "run.html") as following:
        lines = iter(following.stdout)
        name = next(line for line in lines if "submitted as job" in line).split()[3]
        assert any(" of 256 calls" in line for line in lines), "it is followed while it runs"
        following.send_signal(signal.SIGINT)
        rest = "".join(lines)
        assert following.wait(timeout=60) == 130
    assert f"job {name} goes on without us" in rest
    stopped = client.run("jobs", "cancel", name)
    assert stopped.returncode == 0, stopped.stderr
    assert "was cancelled. The same command goes on from here." in stopped.stdout
    assert not (client.folder / "plan.json").exists()
    listed = client.run("jobs", "list", job=True).stdout.splitlines()
    assert [line.split()[1] for line in listed if name in line] == ["stopped"]

    again = client.run(*SEARCH, "--json", "run.json", "--report", "run.html", job=True)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "going on from where it was stopped" in again.stdout
    run = json.loads((client.folder / "run.json").read_text())
    assert run["nodes"] == 2
    assert "<html" in (client.folder / "run.html").read_text()
    here = client.run(*SEARCH, "--runners", "2", "--out", "here.json")  # as on two nodes
    assert here.returncode == 0, here.stdout + here.stderr
    plan = (client.folder / "plan.json").read_text()
    assert plan == (client.folder / "here.json").read_text()


def test_a_question_without_an_answer_ends_with_the_same_code_as_here(client):
    impossible = client.run(*SEARCH, "--method", "heuristic", "--ttft", "1us", job=True)
    assert impossible.returncode == 3
    assert "error: " in impossible.stdout
    assert "ended with exit code 3" in impossible.stdout


def test_plans_are_simulated_in_a_job_as_they_are_here(client):
    for name in ("tight", "roomy"):
        planned = client.run(
            *("plan", "--model", "llama-3.1-8b", "--cluster", "1x8xH100", "--isl", "256"),
            *("--osl", "32", "--headroom", "0.2" if name == "tight" else "0.5"),
            *("--out", f"{name}.json"),
        )
        assert planned.returncode == 0, planned.stderr
    one = ("simulate", "--plan", "tight.json", *TRAFFIC)
    for words in (one, (*one, "--plan", "roomy.json")):
        for where, job in (("there", True), ("here", False)):
            done = client.run(*words, "--json", f"{where}.json", job=job)
            assert done.returncode == 0, done.stdout + done.stderr
        there, here = (_runs(client.folder / f"{where}.json") for where in ("there", "here"))
        assert there == here
        assert there[0]["plan"] == "tight.json"
        assert len(there) == words.count("--plan")


def _runs(path: Path) -> list[dict[str, object]]:
    """What was simulated, without how long that took."""
    clocks = ("wall_s", "times_real_time")
    runs = json.loads(path.read_text())["runs"]
    return [{name: run[name] for name in run if name not in clocks} for run in runs]


def test_the_nodes_of_the_cluster_are_measured_by_a_job(client):
    measured = client.run(
        *("calibrate", "--measure", "--budget", "20s", "--out", "mine.yaml"), job=True
    )
    assert measured.returncode == 0, measured.stdout + measured.stderr
    assert "microbenchmarks" in (client.folder / "mine.yaml").read_text()
