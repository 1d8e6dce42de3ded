from __future__ import annotations

import json

import pytest

from cluster.errors import ConfigError
from tests.cli.test_plan import invoke, options


@pytest.fixture
def plan_file(tmp_path):
    assert invoke(*options(tmp_path)).exit_code == 0
    return tmp_path / "plan.json"


def edit(path, change):
    data = json.loads(path.read_text())
    change(data["pools"][0])
    path.write_text(json.dumps(data))


def test_a_fresh_plan_passes(plan_file):
    result = invoke("check", str(plan_file))
    assert result.exit_code == 0, result.output
    assert "no violations" in result.output


def test_a_violation_is_listed_with_cost_and_fix(plan_file):
    edit(plan_file, lambda pool: pool["layout"].update(tp=3))
    result = invoke("check", str(plan_file))
    assert result.exit_code == 1
    for text in ("main: heads", "cost:", "fix:", "violation(s)"):
        assert text in result.output


def test_findings_as_json(plan_file):
    edit(plan_file, lambda pool: pool["replicas"].update(maximum=100))
    result = invoke("check", str(plan_file), "--json")
    assert result.exit_code == 1
    found = json.loads(result.output)
    assert found[0]["rule"] == "devices"
    assert {"pool", "problem", "cost", "fix"} < set(found[0])


def test_another_cluster_can_be_asked_about(plan_file):
    result = invoke("check", str(plan_file), "--cluster", "1xH100")
    assert result.exit_code == 1
    assert "device" in result.output


def test_a_source_out_of_the_catalogue_falls_back_to_the_name(plan_file):
    edit(plan_file, lambda pool: pool["model"].update(source="someone/unknown"))
    edit(plan_file, lambda pool: pool["model"].update(name="llama-3.1-8b"))
    assert invoke("check", str(plan_file)).exit_code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not JSON"), ("{}", "Field required"), ('{"version": 9}', "version")],
)
def test_what_is_no_plan_is_bad_input(tmp_path, text, message):
    path = tmp_path / "plan.json"
    path.write_text(text)
    result = invoke("check", str(path))
    assert isinstance(result.exception, ConfigError)
    assert result.exception.exit_code == 2
    assert message in str(result.exception)


def test_a_model_nobody_knows_is_bad_input(plan_file):
    edit(plan_file, lambda pool: pool["model"].update(source="nobody/nothing", name="nothing"))
    result = invoke("check", str(plan_file))
    assert isinstance(result.exception, ConfigError)
    assert "pools.main.model.source" in str(result.exception)
