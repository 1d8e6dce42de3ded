import pytest
import typer
from typer.testing import CliRunner

from autoscaler.virtual import Scenario, run
from cli.replay import command
from cluster.errors import ConfigError, InputError, UnknownNameError
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


@pytest.mark.parametrize("policy", ["ewma", "holt_winters", "auto", "token_load"])
def test_another_policy_by_name_is_set_beside_the_recorded_one(log, policy):
    result = call(log, "--policy", policy)
    assert result.exit_code == 0, result.output
    assert "60 ticks, 1 run(s)" in result.output
    assert result.output.count(f" {policy} ") >= 2
    assert "does not react" in result.output


def test_the_recorded_policy_changes_nothing_else(log):
    assert (
        "last_value changes nothing else at any tick" in call(log, "--policy", "last_value").output
    )


@pytest.mark.parametrize(
    "text", ["up_delay_s: 40\n", "http:\n  port: 9\nsteering:\n  up_delay_s: 40\n"]
)
def test_another_policy_by_file_is_the_section_or_the_whole_configuration(log, tmp_path, text):
    path = tmp_path / "slow.yaml"
    path.write_text(text, encoding="utf-8")
    result = call(log, "--policy", str(path), "--limit", "1")
    assert result.exit_code == 0, result.output
    assert "- recorded: tier NORMAL, 1 decision(s)" in result.output
    assert f"+ {path}: tier NORMAL, 0 decision(s)" in result.output


def test_an_unknown_policy_is_told_which_there_are(log):
    with pytest.raises(
        UnknownNameError, match=r"'ewam'.*Did you mean ewma.*auto.*token_load.*YAML"
    ):
        command(log, policy="ewam")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "cannot be read"),
        ("- 1\n", "not sections"),
        ("up_delay: 4\n", "up_delay"),
        ("steering:\n  up_delay: 4\n", r"steering\.up_delay"),
        ("down_utilisation: 0.9\n", "down_utilisation"),
        ("forecast:\n  method: prophet\n", "unknown forecaster"),
    ],
)
def test_a_wrong_settings_file_is_a_user_error(log, tmp_path, text, expected):
    path = tmp_path / "other.yaml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=expected):
        command(log, policy=str(path))


@pytest.mark.parametrize("text", ["not json\n", ""])
def test_a_bad_log_is_a_user_error_for_another_policy_too(tmp_path, text):
    path = tmp_path / "x.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"x\.jsonl"):
        command(path, policy="ewma")
