from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from cli import search
from cli.search_run import heuristic_of, space_of
from cluster.errors import ConfigError, InfeasibleError, InputError, UnavailableError
from cluster.model.plan import load_plan
from rl_search import runs
from rl_search.archive import Archive
from rl_search.checkpoint import Checkpoint
from rl_search.evaluator import Judged
from rl_search.methods import METHODS
from tests.rl_search import searches

ROOT = Path(__file__).resolve().parents[2]
APP = typer.Typer()
APP.command()(search.command)
QUESTION = (
    *("--model", "qwen3-30b-a3b", "--cluster", "1x8xH100", "--isl", "2000", "--osl", "300"),
    *("--tpot", "50ms"),
)

pytestmark = pytest.mark.filterwarnings("ignore")  # RLlib and gymnasium, on how they are used


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWISE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def invoke(tmp_path, *arguments: str):
    return CliRunner().invoke(
        APP, [*QUESTION, "--out", str(tmp_path / "plan.json"), *arguments], catch_exceptions=True
    )


@pytest.mark.parametrize("method", [name for name in METHODS if name != "tpe"])
def test_a_method_writes_a_plan_a_document_and_a_page(tmp_path, home, method):
    result = invoke(
        tmp_path,
        *("--method", method, "--budget", "120", "--space", "any"),
        *("--json", str(tmp_path / "run.json"), "--report", str(tmp_path / "run.html")),
    )
    assert result.exit_code == 0, result.output
    made = json.loads((tmp_path / "run.json").read_text())
    plan = load_plan(tmp_path / "plan.json")
    assert made["best"]["plan"] == json.loads(plan.dumps())
    assert (made["method"], made["seed"]) == (method, 0)
    if method != "exact":
        assert made["calls"] <= 120
    assert made["best"]["value"] >= made["heuristic"]["value"]
    assert made["best"]["value"] <= made["exact"]["value"] * 1.002
    values = [value for _, value in made["curve"]]
    assert values == sorted(values)
    expected = plan.main.expected
    assert expected is not None
    assert expected.tokens_per_s_per_device == pytest.approx(made["best"]["value"], rel=1e-6)
    assert "exact optimum" in result.output
    assert "under the masks" in result.output
    assert made["model"] in (tmp_path / "run.html").read_text()
    assert not list((home / "searches").glob("*")), "a search that is done keeps nothing"


def test_ppo_from_the_command_line(tmp_path):
    result = invoke(
        tmp_path,
        *("--method", "ppo", "--budget", "64", "--samples", "16", "--chunks", "2"),
        *("--json", str(tmp_path / "run.json"), "--report", str(tmp_path / "run.html")),
    )
    assert result.exit_code == 0, result.output
    made = json.loads((tmp_path / "run.json").read_text())
    assert made["calls"] == 64
    assert made["nodes"] == 1
    assert {entry["chunk"] for entry in made["confidence"]} == {0, 1}
    heads = {head["name"] for head in made["space"]["heads"]}
    assert set(made["confidence"][0]["heads"]) == heads == set(made["best"]["choices"])


def test_goodput_is_searched_through_simulators(tmp_path):
    result = invoke(
        tmp_path,
        *("--method", "random", "--budget", "6", "--fidelity", "goodput", "--ttft", "4s"),
        *("--requests", "40", "--simulators", "1", "--json", str(tmp_path / "run.json")),
    )
    assert result.exit_code == 0, result.output
    made = json.loads((tmp_path / "run.json").read_text())
    assert made["fidelity"] == "goodput"
    assert made["exact"] is None
    assert made["best"]["value"] > 0.0


def test_no_plan_ships_that_is_worse_than_the_heuristic_s(tmp_path):
    result = invoke(
        tmp_path, "--method", "random", "--budget", "1", "--json", str(tmp_path / "r.json")
    )
    assert result.exit_code == 0, result.output
    made = json.loads((tmp_path / "r.json").read_text())
    assert made["best"]["from_heuristic"]
    assert made["best"]["value"] == made["heuristic"]["value"]
    assert "heuristic's strategy is at least as good" in result.output


WRONG = [
    (("--method", "magic"), InputError, "no search method 'magic'.*ppo, random"),
    (("--fidelity", "goodput", "--priority", "balanced"), InputError, "maximises throughput"),
    (("--trace", "poisson:rate=1,count=9,isl=9,osl=9"), InputError, "--fidelity goodput"),
    (("--json", "run.txt"), InputError, r"must end in \.json"),
    (("--report", "run.txt"), InputError, r"must end in \.html"),
    (("--json", "/proc/nowhere/run.json"), InputError, r"--json /proc/nowhere/run\.json"),
    (("--address", "127.0.0.1:1"), UnavailableError, "cannot connect to a Ray cluster"),
    (("--isl", "200000"), InputError, "accepts at most"),
    (("--method", "random", "--tpot", "1us"), InfeasibleError, "none of .* strategies judged"),
    (
        ("--method", "random", "--fidelity", "goodput", "--space", "any", "--tpot", "50ms"),
        InputError,
        "use|search the `vllm` space",
    ),
    (("--method", "random", "--cluster", "1x8xH100+1x8xA100-80"), InputError, "equal nodes"),
    (
        ("--method", "random", "--model", "deepseek-v3", "--cluster", "1x8xA100-40"),
        InfeasibleError,
        "Nearest miss",
    ),
]


@pytest.mark.parametrize(("arguments", "error", "text"), WRONG, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_said_with_the_fix(tmp_path, monkeypatch, arguments, error, text):
    monkeypatch.chdir(tmp_path)
    result = invoke(tmp_path, *arguments)
    assert isinstance(result.exception, error), result.output
    with pytest.raises(error, match=text):
        raise result.exception


def test_a_budget_of_nothing_is_refused_by_its_option(tmp_path):
    result = invoke(tmp_path, "--budget", "0")
    assert result.exit_code == 2


def test_a_mixed_cluster_is_named():
    from cli.console import resolve_cluster
    from cluster.model.catalogue import get_model
    from cluster.model.workload import Workload
    from rl_search.request import PlanRequest

    request = PlanRequest(
        model=get_model("qwen3-30b-a3b"),
        cluster=resolve_cluster("1x8xH100+1x8xA100-80"),
        workload=Workload(isl=2000, osl=300),
    )
    with pytest.raises(InputError, match=r"8 x h100.*8 x a100.*Fix"):
        space_of(request)


class Flaky:
    """The cost model, interrupted at the third batch."""

    def __init__(self) -> None:
        self._evaluator = searches.cost_model()
        self.space = self._evaluator.space
        self.judged = 0
        self.stop_after = 2**31

    def judge(self, actions: np.ndarray) -> Judged:
        if self.judged >= self.stop_after:
            raise KeyboardInterrupt
        self.judged += len(actions)
        return self._evaluator.judge(actions)


@pytest.mark.parametrize("method", ["random", "anneal", "genetic"])
def test_an_interrupted_search_goes_on_where_it_was_at_no_cost(tmp_path, method):
    order = runs.Order(method=method, budget=150, seed=3)
    whole = runs.run(order, searches.cost_model()).archive
    flaky = Flaky()
    flaky.stop_after = 100
    kept = Checkpoint(tmp_path / "search", {"asked": "this"})
    with pytest.raises(KeyboardInterrupt):
        runs.run(order, flaky, checkpoint=kept)
    saved = kept.load(flaky.space)
    assert saved is not None
    known = len(saved.memory)
    assert 50 <= known <= 150
    again = Flaky()
    after = runs.run(order, again, checkpoint=kept).archive
    assert (after.actions == whole.actions).all()
    assert after.calls == whole.calls
    assert again.judged == whole.calls - known


def test_another_question_does_not_go_on_from_a_checkpoint(tmp_path):
    Checkpoint(tmp_path / "s", {"budget": 5, "seed": 0})
    with pytest.raises(InputError, match=r"seed was 0 and is 1.*--fresh"):
        Checkpoint(tmp_path / "s", {"budget": 5, "seed": 1})


def test_a_damaged_checkpoint_is_named(tmp_path):
    kept = Checkpoint(tmp_path / "s", {})
    (tmp_path / "s" / "state.npz").write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match=r"state\.npz is no checkpoint.*Fix"):
        kept.load(searches.space_of())
    kept.clear()
    assert not (tmp_path / "s").exists()


def test_a_search_killed_in_a_save_keeps_the_save_before(tmp_path):
    kept = Checkpoint(tmp_path / "s", {})
    archive = Archive(searches.cost_model(), budget=10)
    archive.judge(archive.space.sample(np.random.default_rng(0), 5))
    kept.save(archive, round_=b"round")
    (tmp_path / "s" / "state.npz.new").write_bytes(b"half")
    saved = kept.load(archive.space)
    assert saved is not None
    assert (saved.memory.actions == archive.actions).all()
    assert saved.round == b"round"


def test_the_heuristic_s_worth_is_asked_of_the_same_judge():
    evaluator = searches.Counting(searches.space_of())
    found = heuristic_of(evaluator)
    assert found is not None
    assert found.value == evaluator.judge(np.asarray([found.action])).value[0]


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_a_stopped_job_says_how_to_go_on_and_does(tmp_path, sent):
    """A real process, stopped while it learns; what it saved is gone on from."""
    command = [
        *(sys.executable, "-m", "cli.main", "search", *QUESTION, "--method", "ppo"),
        *("--budget", "4000", "--space", "any", "--samples", "16", "--tau", "2"),
        *("--checkpoint", str(tmp_path / "kept"), "--out", str(tmp_path / "plan.json")),
    ]
    running = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        state = tmp_path / "kept" / "state.npz"
        deadline = time.monotonic() + 120.0
        while not state.exists() and running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert state.exists(), running.communicate(timeout=5)[0]
        running.send_signal(sent)
        said, _ = running.communicate(timeout=60)
    finally:
        if running.poll() is None:
            os.kill(running.pid, signal.SIGKILL)
    assert running.returncode == 130, said
    assert "run the same command again to go on" in said
    assert "Traceback" not in said
    with np.load(state) as held:
        saved = len(held["actions"])
    assert saved >= 16


def test_without_rllib_ppo_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rl_search.train", None)
    with pytest.raises(UnavailableError, match=r"shardwise\[rl\]"):
        runs.run(runs.Order(method="ppo", budget=5, seed=0), searches.cost_model())


def test_orders_that_cannot_be_are_refused():
    order = runs.Order(method="random", budget=5, seed=0)
    with pytest.raises(InputError, match="at least 1"):
        replace(order, budget=0)
    with pytest.raises(InputError, match="cannot start from 'luck'"):
        replace(order, starts=("luck",))
    assert issubclass(ConfigError, Exception)
