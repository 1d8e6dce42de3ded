from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from cli import validate
from cluster.costmodel.calibration_file import default_coefficients
from cluster.errors import ConfigError, InputError
from tests.calibration.samples import csv_text

APP = typer.Typer()
APP.command("validate")(validate.command)
APP.callback()(lambda: None)

RUNS = csv_text(
    {"id": "tp1", "tp": "1", "moe_tp": "1", "tpot_ms": "20"},
    {"id": "tp2", "tpot_ms": "12"},
    {"id": "tp4", "tp": "4", "attention_dp": "4", "moe_tp": "1", "moe_ep": "16", "tpot_ms": "9"},
    {"id": "tp1 busy", "tp": "1", "moe_tp": "1", "concurrency": "64", "tpot_ms": "44"},
)


class Predictor:
    """Says `factor` times what tp and concurrency suggest; nothing for the ids in `silent`."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.silent: set[str] = set()
        self.as_written: bool | None = None

    def __call__(self, find, *, coefficients, as_written):
        self.as_written = as_written

        def predict(runs):
            tpot_s = np.array([0.02 / found.tp + found.concurrency * 1e-4 for found in runs])
            tpot_s[[found.id in self.silent for found in runs]] = np.nan
            return tpot_s * 10 * self.factor, tpot_s * self.factor

        return predict


@pytest.fixture
def predictor(monkeypatch):
    fake = Predictor()
    monkeypatch.setattr(validate, "_predictor", fake)
    monkeypatch.setattr(validate, "_coefficients", lambda path: default_coefficients())
    return fake


@pytest.fixture
def validated(tmp_path, predictor):
    (tmp_path / "runs.csv").write_text(RUNS)

    def invoke(*arguments: str, runs: str = "runs.csv"):
        given = ["validate", "--runs", str(tmp_path / runs), "--out", str(tmp_path / "out.csv")]
        return CliRunner().invoke(APP, [*given, *arguments])

    return invoke


def written(tmp_path) -> list[dict[str, str]]:
    with (tmp_path / "out.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_predictions_are_written_in_milliseconds_in_the_order_of_the_runs(tmp_path, validated):
    result = validated()
    assert result.exit_code == 0, result.output
    rows = written(tmp_path)
    assert [row["id"] for row in rows] == ["tp1", "tp2", "tp4", "tp1 busy"]
    assert (rows[0]["ttft_ms"], rows[0]["tpot_ms"]) == ("216.0000", "21.6000")
    for text in ("4 runs, 4 with measured", "4 answered (100.0 %)", "Kendall tau", "pools"):
        assert text in result.output
    assert "same runs" not in result.output


def test_a_row_without_an_answer_is_empty_and_says_why(tmp_path, validated, predictor):
    predictor.silent = {"tp2"}
    result = validated()
    assert result.exit_code == 0, result.output
    assert written(tmp_path)[1] == {"id": "tp2", "ttft_ms": "", "tpot_ms": ""}
    assert "no answer for 1 run(s): the cost model has no answer" in result.output
    assert "(tp2)" in result.output


def test_no_answer_at_all_is_a_finding(tmp_path, validated, predictor):
    predictor.silent = {row.split(",")[0] for row in RUNS.splitlines()}
    result = validated()
    assert result.exit_code == 1, result.output
    assert "0 answered" in result.output
    assert len(written(tmp_path)) == 4


def test_degrees_counted_twice_are_told_and_may_be_taken_literally(validated, predictor):
    result = validated()
    assert "1 runs count theirs twice, read as" in result.output
    assert predictor.as_written is False
    result = validated("--degrees", "as-written")
    assert "1 runs count theirs twice, taken as written" in result.output
    assert predictor.as_written is True


def test_runs_without_measurements_are_only_predicted(tmp_path, validated):
    blank = [{"id": name, "ttft_ms": "", "tpot_ms": ""} for name in ("x", "y")]
    (tmp_path / "blank.csv").write_text(csv_text(*blank))
    result = validated("--json", str(tmp_path / "report.json"), runs="blank.csv")
    assert result.exit_code == 0, result.output
    assert "no measured times in the file" in result.output
    assert "Kendall" not in result.output
    assert all(row["tpot_ms"] for row in written(tmp_path))
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["measured"] == 0
    assert report["ours"]["errors"]["overall"]["all"]["tpot"]["median"] is None


def test_the_peer_is_compared_on_the_rows_both_answer(tmp_path, validated, predictor):
    predictor.silent = {"tp2"}
    (tmp_path / "peer.csv").write_text(
        "id,ttft_ms,tpot_ms\ntp1,120.5,20\ntp2,120.5,12\ntp4,,\ntp1 busy,241,88\nother,1,1\n"
    )
    result = validated(
        "--peer", str(tmp_path / "peer.csv"), "--json", str(tmp_path / "report.json")
    )
    assert result.exit_code == 0, result.output
    assert "on the 2 runs that both answer (the peer answers 75.0 % of all)" in result.output
    report = json.loads((tmp_path / "report.json").read_text())
    ours, peer = report["same_rows"]
    assert ours["rows"] == peer["rows"] == 2
    assert peer["errors"]["overall"]["all"]["tpot"]["mean"] == pytest.approx(0.5)  # 0 and 1
    assert ours["errors"]["overall"]["all"]["tpot"]["mean"] != pytest.approx(0.5)
    assert report["ours"]["coverage"] == report["peer"]["coverage"] == 0.75


def test_what_was_written_can_be_read_as_a_peer(tmp_path, validated):
    assert validated().exit_code == 0
    (tmp_path / "out.csv").rename(tmp_path / "peer.csv")
    result = validated("--peer", str(tmp_path / "peer.csv"), "--json", str(tmp_path / "r.json"))
    assert result.exit_code == 0, result.output
    ours, peer = json.loads((tmp_path / "r.json").read_text())["same_rows"]
    assert ours["ranking"] == pytest.approx(peer["ranking"])


def test_a_peer_of_other_runs_is_refused(tmp_path, validated):
    (tmp_path / "peer.csv").write_text("id,ttft_ms,tpot_ms\nother,1,1\n")
    result = validated("--peer", str(tmp_path / "peer.csv"))
    assert isinstance(result.exception, InputError)
    assert "no id occurs in both files" in str(result.exception)


@pytest.mark.parametrize(
    "options",
    [
        ("--out", "runs.csv"),
        ("--out", "absent/out.csv"),
        ("--out", "."),
        ("--json", "out.csv"),
        ("--json", "runs.csv"),
    ],
)
def test_outputs_that_cannot_be_or_would_overwrite_are_refused(tmp_path, validated, options):
    before = (tmp_path / "runs.csv").read_text()
    name, value = options
    result = validated(name, str(tmp_path / value))
    assert isinstance(result.exception, InputError)
    assert name in str(result.exception)
    assert (tmp_path / "runs.csv").read_text() == before
    assert not (tmp_path / "out.csv").exists()


def test_a_bad_file_is_an_input_error(tmp_path, validated):
    (tmp_path / "bad.csv").write_text(csv_text({"tp": "none"}))
    result = validated(runs="bad.csv")
    assert isinstance(result.exception, ConfigError)
    assert "line 2" in str(result.exception)


def test_models_that_are_not_there_are_an_input_error(tmp_path, validated):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "org--other.json").write_text("{}")
    result = validated("--models", str(tmp_path / "models"))
    assert isinstance(result.exception, InputError)
    assert "openai--gpt-oss-20b" in str(result.exception)
    assert "org--other" in str(result.exception)
