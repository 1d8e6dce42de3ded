"""What a command becomes as a job, and that it does there what it does here."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from cli import calibrate, search, simulate
from cli.address import is_job_interface
from cli.job_command import JobCommand, as_job
from cli.job_files import FILES
from cli.job_package import PACKAGES, ROOT, SCRIPT, entrypoint, pack
from cli.job_record import checkpoint_of
from cli.job_results import as_typed
from cli.main import app
from cluster.errors import ConfigError, InputError, UnknownNameError
from tests.test_architecture import PACKAGES as SHIPPED

ADDRESS = ("--address", "http://head:8265")
QUESTION = ("--isl", "2000", "--osl", "300", "--tpot", "50ms")
SEARCH = ("--model", "qwen3-30b-a3b", "--cluster", "1x8xH100", *QUESTION)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWISE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(command: str, *words: str) -> JobCommand:
    parsed = typer.main.get_command(app).commands[command]
    return as_job(parsed.make_context(command, [*words, *ADDRESS]), FILES[command])


def after(option: str, made: JobCommand) -> str:
    return made.arguments[made.arguments.index(option) + 1]


def config(folder: Path) -> Path:
    """A model of its own: the dimensions of Llama 3.1 8B."""
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "num_hidden_layers": 32,
                "vocab_size": 128256,
                "max_position_embeddings": 131072,
                "torch_dtype": "bfloat16",
            }
        )
    )
    return path


@pytest.mark.parametrize("address", ["http://head:8265", "https://ray.example", "HTTP://h:1"])
def test_an_http_address_means_a_job(address):
    assert is_job_interface(address)


@pytest.mark.parametrize("address", [None, "auto", "head:6379", "ray://head:10001"])
def test_every_other_address_means_a_cluster_to_work_on_from_here(address):
    assert not is_job_interface(address)


def test_a_search_keeps_what_was_said_and_writes_its_results_into_the_job(place):
    made = job("search", *SEARCH, "--no-regret", "--budget", "64", "--report", "/tmp/a/page.html")
    assert " ".join(made.arguments) == (
        "--model qwen3-30b-a3b --cluster 1x8xH100 --isl 2000 --osl 300 --budget 64 --tpot 50ms "
        "--no-regret --report outputs/0/page.html --out outputs/1/plan.json "
        "--checkpoint checkpoint --address auto"
    )
    assert made.outputs == {
        "outputs/0/page.html": Path("/tmp/a/page.html"),
        "outputs/1/plan.json": place / "plan.json",
    }
    assert made.inputs == {}


def test_of_a_model_directory_only_its_configuration_travels(place):
    path = config(place / "tiny-llama")
    (place / "tiny-llama" / "model.safetensors").write_bytes(b"weights")
    for typed in ("tiny-llama", str(path), "./tiny-llama/config.json"):
        made = job("search", "--model", typed, "--cluster", "1x8xH100", *QUESTION)
        assert [each.resolve() for each in made.inputs.values()] == [path]
        assert after("--model", made).startswith("inputs/0/tiny-llama")
        assert made.words[after("--model", made)] == typed


def test_a_file_travels_wherever_one_may_be_text(place):
    (place / "nodes.yaml").write_text((ROOT / "docs/examples/cluster.yaml").read_text())
    (place / "day.csv").write_text("anything\n")
    made = job(
        *("search", "--model", "qwen3-30b-a3b", "--cluster", "nodes.yaml", *QUESTION),
        *("--fidelity", "goodput", "--trace", "day.csv"),
    )
    folder = place.name
    assert after("--cluster", made) == f"inputs/0/{folder}/nodes.yaml"
    assert after("--trace", made) == f"inputs/1/{folder}/day.csv"
    described = job("search", *SEARCH, "--trace", "poisson:rate=5,count=10,isl=10,osl=10")
    assert described.inputs == {}


def test_one_plan_is_simulated_without_ray_and_several_on_the_jobs_cluster(place):
    for name in ("a.json", "b.json"):
        (place / name).write_text("{}")
    traffic = ("--trace", "poisson:rate=5,count=10,isl=10,osl=10")
    one = job("simulate", "--plan", "a.json", *traffic, "--plot", "x.png", "--plot", "y/x.png")
    assert "--address" not in one.arguments
    assert list(one.outputs) == ["outputs/0/x.png", "outputs/1/x.png"]
    two = job("simulate", "--plan", "a.json", "--plan", "b.json", *traffic)
    assert two.arguments[-2:] == ("--address", "auto")
    assert [path.name for path in two.inputs.values()] == ["a.json", "b.json"]
    assert "--checkpoint" not in two.arguments


def test_a_calibration_writes_its_default_file_and_takes_a_folder_of_models(place):
    config(place / "models")
    (place / "models" / "notes.txt").write_text("stays")
    (place / "runs.csv").write_text("id\n")
    made = job("calibrate", "--runs", "runs.csv", "--models", "models", "--folds", "3")
    assert sorted(made.inputs) == [f"inputs/0/{place.name}/runs.csv", "inputs/1/models/config.json"]
    assert made.outputs == {"outputs/0/calibration.yaml": place / "calibration.yaml"}
    assert "--address" not in made.arguments
    assert after("--address", job("calibrate", "--measure")) == "auto"


@pytest.mark.parametrize(
    ("command", "words", "error", "said"),
    [
        ("search", ("--model", "lama-3", "--cluster", "1x8xH100"), UnknownNameError, "lama-3"),
        ("search", ("--model", "gone/config.json", "--cluster", "1x8xH100"), ConfigError, "gone"),
        ("search", ("--model", "qwen3-30b-a3b", "--cluster", "no.yaml"), ConfigError, "no.yaml"),
        ("search", (*SEARCH[:4], "--trace", "no.csv"), InputError, "--trace no.csv is no file"),
        ("search", (*SEARCH[:4], "--calibration", "no.yaml"), InputError, "--calibration no.yaml"),
        ("search", (*SEARCH[:4], "--json", "p.json", "--out", "p.json"), InputError, "name two"),
    ],
)
def test_what_is_not_there_is_named_before_anything_is_submitted(command, words, error, said):
    with pytest.raises(error, match=said):
        job(command, *words, *QUESTION)


@pytest.mark.parametrize("option", ["--live", "--local", "--show"])
def test_what_means_this_machine_is_no_job(option):
    with pytest.raises(InputError, match=f"{option} does not go with an http:// address"):
        job("calibrate", option)


@pytest.mark.parametrize("command", [search, simulate, calibrate])
def test_every_option_that_is_a_path_travels_or_comes_back(command):
    files = FILES[command.__name__.rpartition(".")[2]]
    hints = get_type_hints(command.command)
    named = {*files.read, *files.written, *files.here, files.kept} - {None}
    assert named <= {*hints}
    paths = {name for name, hint in hints.items() if "Path" in str(hint)}
    assert paths - {"file"} <= named  # calibrate's argument goes with --show alone


def test_the_same_command_asks_for_the_same_checkpoint_and_another_for_another(place):
    config(place / "m")
    words = ("--model", "m", "--cluster", "1x8xH100", *QUESTION)
    first = checkpoint_of(job("search", *words))
    assert first == checkpoint_of(job("search", *words, "--fresh"))
    assert first != checkpoint_of(job("search", *words, "--budget", "7"))
    assert checkpoint_of(job("search", *words, "--checkpoint", "own")) == place / "own"
    (place / "m" / "config.json").write_text(
        (place / "m" / "config.json").read_text().replace("14336", "7168")
    )
    assert first != checkpoint_of(job("search", *words))


def test_the_package_is_what_is_shipped():
    assert sorted(PACKAGES) == sorted(SHIPPED)


def test_a_packed_command_gives_what_it_gives_here(place):
    config(place / "tiny-llama")
    words = (
        *("--model", "tiny-llama", "--cluster", "1x8xH100", *QUESTION, "--method", "heuristic"),
        *("--out", "here.json", "--report", "here.html"),
    )
    made = job("search", *words)
    package, logs = place / "package", place / "logs"
    logs.mkdir()
    pack(made, {}, package)
    with (logs / "job-driver-a b.log").open("w") as log:
        ran = subprocess.run(
            entrypoint(made).replace("--address auto", ""),
            shell=True,
            cwd=package,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    assert ran.returncode == 0, (logs / "job-driver-a b.log").read_text()
    own = logs / "job-driver-a b"
    assert (own / "outputs/0/here.html").is_file()
    assert not (own / "checkpoint").exists()
    here = CliRunner().invoke(app, ["search", *words])
    assert here.exit_code == 0, here.output
    plan = (own / "outputs/1/here.json").read_bytes()
    assert as_typed(plan, Path("here.json"), made.words) == (place / "here.json").read_bytes()


def test_a_saved_search_travels_into_the_jobs_checkpoint(place):
    state = place / "state.npz"
    state.write_bytes(b"saved")
    package = place / "package"
    pack(job("search", *SEARCH), {"state.npz": state}, package)
    assert (package / "inputs/checkpoint/state.npz").read_bytes() == b"saved"
    stopped = (package / SCRIPT).read_text().replace(shlex.quote(sys.executable), "false")
    (package / SCRIPT).write_text(stopped)
    with (place / "job-driver-x.log").open("w") as log:
        subprocess.run(
            ["sh", SCRIPT, "search"], cwd=package, stdout=log, env={"PATH": "/bin"}, check=False
        )
    assert (place / "job-driver-x/checkpoint/state.npz").read_bytes() == b"saved"


def test_a_cluster_without_a_python_that_has_ray_is_told(place):
    package = place / "package"
    pack(job("search", *SEARCH), {}, package)
    script = (package / SCRIPT).read_text().replace(shlex.quote(sys.executable), "false")
    (package / SCRIPT).write_text(script)
    with (place / "job-driver-x.log").open("w") as log:
        ran = subprocess.run(
            ["sh", SCRIPT, "search"],
            cwd=package,
            stdout=log,
            stderr=subprocess.PIPE,
            env={"PATH": "/bin"},
            text=True,
            check=False,
        )
    assert ran.returncode == 4
    assert "no python of this cluster's head node has Ray" in ran.stderr


def test_a_cluster_without_our_packages_is_told(place):
    package = place / "package"
    pack(job("search", *SEARCH), {}, package)
    (package / "typer.py").write_text("raise ImportError('no typer here')")
    ran = subprocess.run(
        [sys.executable, "-m", "cli.job_entry"],
        cwd=package,
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 4
    assert "cannot run Shardwise (no typer here)" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_files_larger_than_ray_takes_are_refused_with_their_name(place, monkeypatch):
    (place / "day.csv").write_text("x" * 1000)
    monkeypatch.setattr("cli.job_package.MOST_BYTES", 100)
    made = job("search", *SEARCH, "--trace", "day.csv")
    with pytest.raises(InputError, match=r"most of it .*day\.csv"):
        pack(made, {}, place / "package")
