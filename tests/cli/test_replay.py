import pytest
import typer
from typer.testing import CliRunner

from autoscaler.virtual import Scenario, run
from cli.replay import command
from cluster.errors import ConfigError
from tests.autoscaler.build import params


@pytest.fixture
def log(tmp_path):
    scenario = Scenario(
        duration_s=120.0, arrival_tokens_per_s=lambda t: 3000.0 if t > 20.0 else 100.0
    )
    path = tmp_path / "decisions.jsonl"
    path.write_text("\n".join(run(params(), scenario).log_lines()) + "\n", encoding="utf-8")
    return path


def call(*arguments):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_an_honest_log_is_identical(log):
    result = call(log)
    assert result.exit_code == 0
    assert "60 ticks" in result.output
    assert "replay is identical" in result.output


def test_a_changed_parameter_differs_and_the_first_difference_is_shown(log):
    text = log.read_text(encoding="utf-8").replace('"maximum":4', '"maximum":2')
    log.write_text(text, encoding="utf-8")
    result = call(log, "--limit", "1")
    assert result.exit_code == 1
    assert "- recorded" in result.output
    assert "+ replayed" in result.output
    assert result.output.count("line ") == 1
    assert "more; raise --limit" in result.output


@pytest.mark.parametrize("text", [None, "not json\n", ""])
def test_a_bad_file_is_a_user_error(tmp_path, text):
    path = tmp_path / "x.jsonl"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        command(path)
    assert caught.value.exit_code == 2
    assert str(path) in str(caught.value)


def test_binary_is_a_user_error(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        command(path)
