from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from cli import compare, plan
from cluster.errors import ConfigError, InfeasibleError, InputError, UnknownNameError

APP = typer.Typer()
APP.command("compare")(compare.command)
APP.command("plan")(plan.command)

QUESTION = ("--model", "llama-3.1-70b", "--isl", "2000", "--osl", "500", "--tpot", "50ms")


def invoke(*arguments: str):
    return CliRunner().invoke(APP, ["compare", *QUESTION, *arguments])


def clusters(*names: str) -> list[str]:
    return [word for name in names for word in ("--cluster", name)]


def test_clusters_side_by_side_with_figures_and_plots(tmp_path):
    files = {name: tmp_path / f"c.{name}" for name in ("json", "png", "html")}
    result = invoke(
        *clusters("8xH100", "8xB200", "1xH100"),
        *("--rate", "1", "--json", str(files["json"])),
        *("--plot", str(files["png"]), "--plot", str(files["html"])),
    )
    assert result.exit_code == 0, result.output
    h100, b200, single = json.loads(files["json"].read_text())
    assert [h100["feasible"], b200["feasible"], single["feasible"]] == [True, True, False]
    assert "Nearest miss" in single["reason"]
    lines = result.output.splitlines()
    assert any(line.startswith("1xH100") and "no layout fits" in line for line in lines)
    for text in ("least cost per token", "fastest for a user", "devices for 1/s", h100["layout"]):
        assert text in result.output
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    page = files["html"].read_text()
    assert "8xB200" in page
    assert "no layout fits" in page
    assert '<script src="http' not in page  # opens offline


def test_a_cluster_gets_the_layout_that_plan_would_give_it(tmp_path):
    figures = tmp_path / "c.json"
    assert invoke(*clusters("8xH100"), "--json", str(figures)).exit_code == 0
    (row,) = json.loads(figures.read_text())
    made = CliRunner().invoke(
        APP,
        [
            *("plan", *QUESTION, "--cluster", "8xH100"),
            *("--out", str(tmp_path / "plan.json"), "--plot", str(tmp_path / "p.png")),
        ],
    )
    assert made.exit_code == 0, made.output
    expected = json.loads((tmp_path / "plan.json").read_text())["pools"][0]["expected"]
    assert row["tpot_s"] == pytest.approx(expected["tpot_s"])
    assert row["usd_per_million_output_tokens"] == pytest.approx(
        expected["cost_per_million_tokens"]
    )


def test_prices_of_a_file_decide_the_cost(tmp_path):
    costs = []
    for usd in ("1", "3"):
        prices, figures = tmp_path / "prices.yaml", tmp_path / "c.json"
        prices.write_text(f"source: contract\nh100: {usd}\n")
        result = invoke(*clusters("8xH100"), "--prices", str(prices), "--json", str(figures))
        assert result.exit_code == 0, result.output
        assert f"price of h100: ${usd}/h, prices.yaml: contract" in result.output
        costs.append(json.loads(figures.read_text())[0]["usd_per_million_output_tokens"])
    assert costs[1] == pytest.approx(3 * costs[0])


def test_where_nothing_fits_anywhere_every_reason_is_said():
    result = invoke(*clusters("1xH100", "2xL40S"))
    assert isinstance(result.exception, InfeasibleError)
    assert result.output.count("Nearest miss") == 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("--cluster", "8xH900"), UnknownNameError, "unknown device"),
        (("--cluster", "8xH100", "--plot", "c.pdf"), InputError, r"must end with \.html or \.png"),
        (("--cluster", "8xH100", "--ttft", "50"), InputError, "not a duration"),
        (("--cluster", "8xH100", "--rate", "nan"), InputError, "rate must be finite"),
        (("--cluster", "8xH100", "--prices", "nowhere.yaml"), ConfigError, "cannot be read"),
        (("--cluster", "8xH100", "--json", "/proc/nowhere/c.json"), InputError, "cannot be writt"),
    ],
)
def test_bad_input_is_an_error_that_says_why(arguments, error, message):
    result = invoke(*arguments)
    assert isinstance(result.exception, error)
    with pytest.raises(error, match=message):
        raise result.exception
