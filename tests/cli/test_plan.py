from __future__ import annotations

import json

import jsonschema
import pytest
import typer
from typer.testing import CliRunner

from cli import check, plan, schema
from cli.console import duration_s
from cluster.errors import InfeasibleError, InputError, ShardwiseError, UnknownNameError
from cluster.model.plan import load_plan

APP = typer.Typer()
APP.command("plan")(plan.command)
APP.command("check")(check.command)


def invoke(*arguments: str):
    return CliRunner().invoke(APP, list(arguments))


def options(tmp_path, **changes: str) -> list[str]:
    given = {
        "model": "llama-3.1-8b",
        "cluster": "1x8xH100",
        "isl": "2000",
        "osl": "500",
        "ttft": "2000ms",
        "tpot": "30ms",
        "out": str(tmp_path / "plan.json"),
        **changes,
    }
    return ["plan", *(word for name, value in given.items() for word in (f"--{name}", value))]


def test_a_plan_is_written_with_its_plots_and_matches_the_schema(tmp_path):
    result = invoke(*options(tmp_path))
    assert result.exit_code == 0, result.output
    written = load_plan(tmp_path / "plan.json")
    assert written.cluster.spec == "1x8xH100"
    assert written.main.model.source == "llama-3.1-8b"
    assert written.slo.ttft_s == 2.0
    data = json.loads((tmp_path / "plan.json").read_text())
    jsonschema.validate(data, json.loads(schema.SCHEMA_PATH.read_text()))
    assert (tmp_path / "plan.pareto.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "plan.pareto.html").read_text()
    assert "Plotly" in page
    assert '<script src="http' not in page  # opens offline
    for text in ("8.03 B parameters", "layouts considered", "ranked by balanced", "chosen", "TPOT"):
        assert text in result.output


def test_names_sources_and_bounds_are_taken_over(tmp_path):
    changes = {
        "served-name": "chat",
        "model-source": "/models/llama",
        "light": "qwen3-0.6b",
        "light-name": "small",
        "min-replicas": "2",
        "max-model-len": "4096",
        "plot": str(tmp_path / "only.png"),
    }
    result = invoke(*options(tmp_path, **changes))
    assert result.exit_code == 0, result.output
    made = load_plan(tmp_path / "plan.json")
    assert (made.main.model.name, made.main.model.source) == ("chat", "/models/llama")
    assert made.main.replicas.minimum == 2
    assert made.main.engine_args["max_model_len"] == 4096
    assert made.light is not None
    assert (made.light.model.name, made.light.model.source) == ("small", "qwen3-0.6b")
    assert (tmp_path / "only.png").exists()
    assert not (tmp_path / "plan.pareto.png").exists()


def test_priorities_pull_apart(tmp_path):
    found = {}
    for priority in ("throughput", "interactive"):
        assert invoke(*options(tmp_path, priority=priority)).exit_code == 0
        found[priority] = load_plan(tmp_path / "plan.json").main.expected
    assert (
        found["throughput"].tokens_per_s_per_device > found["interactive"].tokens_per_s_per_device
    )
    assert found["throughput"].tokens_per_s_per_user < found["interactive"].tokens_per_s_per_user


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"tpot": "1us"}, InfeasibleError, "Nearest miss"),
        ({"tpot": "50"}, InputError, "not a duration"),
        ({"model": "lama"}, UnknownNameError, "unknown model"),
        ({"cluster": "8xH9000"}, UnknownNameError, "unknown device"),
        ({"plot": "front.pdf"}, InputError, r"must end with \.html or \.png"),
        ({"rate": "inf"}, InputError, "rate must be finite"),
        ({"rate": "nan"}, InputError, "rate must be finite"),
        ({"light": "llama-3.1-8b"}, InputError, "--light-name"),
    ],
)
def test_bad_input_is_an_error_that_says_why(tmp_path, changes, error, message):
    result = invoke(*options(tmp_path, **changes))
    assert isinstance(result.exception, error)
    assert isinstance(result.exception, ShardwiseError)
    with pytest.raises(error, match=message):
        raise result.exception


def test_this_machine_is_a_cluster(tmp_path):
    changes = {"model": "smollm2-135m-instruct", "cluster": "local", "ttft": "60s", "tpot": "5s"}
    result = invoke(*options(tmp_path, **changes, isl="100", osl="50"))  # type: ignore[arg-type]
    assert result.exit_code == 0, result.output
    assert load_plan(tmp_path / "plan.json").cluster.spec == "local"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2000ms", 2.0), ("2s", 2.0), ("0.05s", 0.05), (".5 ms", 5e-4), ("1min", 60.0)],
)
def test_durations_need_a_unit_and_get_it(text, seconds):
    assert duration_s(text, option="--ttft") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["2000", "-1s", "0s", "fast", "", "1e3ms", "nan s"])
def test_what_is_no_duration_names_the_option(text):
    with pytest.raises(InputError, match="--ttft"):
        duration_s(text, option="--ttft")


def test_the_ending_of_a_plot_is_checked_before_the_search(tmp_path):
    result = invoke(*options(tmp_path, plot="front.pdf"))
    assert isinstance(result.exception, InputError)
    assert "considered" not in result.output
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(("rate", "warned"), [("0.5", False), ("1e6", True), ("1e308", True)])
def test_a_rate_beyond_the_maximum_is_said(tmp_path, rate, warned):
    changes = {"rate": rate, "plot": str(tmp_path / "a.html")}
    result = invoke(*options(tmp_path, **changes))
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if "warning:" in line]
    assert len(lines) == int(warned)
    if warned:
        main = load_plan(tmp_path / "plan.json").main
        assert f"maximum of {main.replicas.maximum} replica(s)" in lines[0]
        assert "are needed" in lines[0]
