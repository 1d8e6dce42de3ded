"""`shardwise calibrate --live`: what is wrong is said before an engine is started."""

from __future__ import annotations

import sys

import pytest
import typer
from typer.testing import CliRunner

from cli import calibrate
from cluster.errors import InputError, UnavailableError

APP = typer.Typer()
APP.command("calibrate")(calibrate.command)
APP.callback()(lambda: None)


def failure(*arguments: object) -> BaseException | None:
    return CliRunner().invoke(APP, ["calibrate", "--live", *map(str, arguments)]).exception


def test_an_unknown_model_is_named_with_those_there_are(tmp_path):
    error = failure("--model", "smollm3", "--out", tmp_path / "live.yaml")
    assert isinstance(error, InputError)
    assert "smollm2-135m-instruct" in str(error)


def test_a_directory_without_a_model_is_refused(tmp_path):
    error = failure("--model", tmp_path, "--out", tmp_path / "live.yaml")
    assert isinstance(error, InputError)
    assert "config.json" in str(error)


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


def test_a_chunk_that_decoding_fills_is_refused(model, tmp_path):
    arguments = ("--chunk", 32, "--max-num-seqs", 64, "--out", tmp_path / "live.yaml")
    error = failure("--model", model, *arguments)
    assert isinstance(error, InputError)
    assert "--chunk" in str(error)


def test_without_vllm_it_says_what_to_install(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", None)
    error = failure("--model", model, "--out", tmp_path / "live.yaml")
    assert isinstance(error, UnavailableError)
    assert "extra" in str(error)
    assert not (tmp_path / "live.yaml").exists()


def test_it_is_one_source_of_several(tmp_path):
    error = failure("--measure", "--out", tmp_path / "live.yaml")
    assert isinstance(error, InputError)
    assert "--live" in str(error)
