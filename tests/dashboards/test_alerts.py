"""Alert rules, by the real promtool: each fires when it should, and none when all is well."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.telemetry.contract import scraped
from tests.dashboards.alert_cases import CASES, HEALTHY, Case
from tests.tooling.debian import tool

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "helm" / "shardwise" / "files" / "alerts.yaml"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}
SERIES = {name for metric in scraped() for name in metric.series} | {"up"}


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tool("promtool"), *arguments], capture_output=True, text=True, check=False
    )


def expected(case: Case) -> dict[str, Any]:
    """The alert as promtool wants it: all of its labels, and its annotations filled in."""
    rule = RULES[case.alert]
    labels = {"job": "shardwise", **case.labels}
    annotations = {
        name: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[found[1]], words)
        for name, words in rule["annotations"].items()
    }
    return {"exp_labels": {**rule["labels"], **labels}, "exp_annotations": annotations}


def service(changes: dict[str, str], *, asked: list[dict[str, Any]]) -> dict[str, Any]:
    unknown = changes.keys() - HEALTHY.keys()
    assert not unknown, "what is broken must be there in health"
    series = [{"series": name, "values": values} for name, values in (HEALTHY | changes).items()]
    return {"interval": "1m", "input_series": series, "alert_rule_test": asked}


def run(tmp_path: Path, tests: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "alerts.test.yaml"
    content = {"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": tests}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return promtool("test", "rules", str(path))


def test_the_rules_are_well_formed():
    checked = promtool("check", "rules", "--lint-fatal", str(FILE))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_alert_fires_in_its_case(tmp_path):
    tests = [
        service(
            case.series,
            asked=[{"eval_time": case.at, "alertname": case.alert, "exp_alerts": [expected(case)]}],
        )
        for case in CASES
    ]
    done = run(tmp_path, tests)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {case.alert for case in CASES} == set(RULES)


def test_no_alert_fires_while_all_is_well(tmp_path):
    asked = [
        {"eval_time": at, "alertname": alert, "exp_alerts": []}
        for at in ("4m", "15m", "2h", "7h", "15h")
        for alert in RULES
    ]
    done = run(tmp_path, [service({}, asked=asked)])
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_test_of_an_alert_that_does_not_fire_is_noticed(tmp_path):
    case = CASES[0]
    wrong = {"eval_time": "90m", "alertname": case.alert, "exp_alerts": [expected(case)]}
    done = run(tmp_path, [service({}, asked=[wrong])])
    assert done.returncode != 0


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_has_words_a_severity_and_its_section(alert):
    rule = RULES[alert]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert {"summary", "description", "runbook"} <= rule["annotations"].keys()
    assert rule["annotations"]["runbook"] == f"docs/runbook.md#{alert.lower()}"


def test_alerts_and_their_cases_name_metrics_of_the_contract_alone():
    words = [rule["expr"] for rule in RULES.values()] + list(HEALTHY)
    named = {name for each in words for name in re.findall(r"\b(?:shardwise_\w+|vllm:\w+)", each)}
    assert named <= SERIES
