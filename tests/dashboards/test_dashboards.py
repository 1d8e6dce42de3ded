"""Dashboards: well formed, current on disk, and of metrics that there are."""

from __future__ import annotations

import re
import subprocess
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from cli.metric_docs import METRICS_PATH, page_text, users
from dashboards.panels import Dashboard
from dashboards.render import rendered, text
from dashboards.table import DASHBOARDS
from serving.telemetry.contract import scraped
from tests.dashboards.queries import filled, queries
from tests.tooling.debian import tool

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "helm" / "shardwise" / "files" / "dashboards"
SERIES = {name for metric in scraped() for name in metric.series}


def test_the_files_of_the_chart_are_current():
    there = {path.name: path.read_text(encoding="utf-8") for path in FILES.iterdir()}
    assert there == {f"{each.uid}.json": text(each) for each in DASHBOARDS}, (
        "write them again: shardwise dashboards render --out helm/shardwise/files/dashboards"
    )


def test_the_page_of_metrics_is_current():
    assert METRICS_PATH.read_text(encoding="utf-8") == page_text(), (
        "write it again: python -m cli.metric_docs --write"
    )


def test_queries_name_metrics_of_the_contract_alone():
    assert users().keys() <= SERIES


def test_every_metric_is_used_by_a_dashboard_or_an_alert():
    used = users().keys()
    assert [m.name for m in scraped() if not used & set(m.series)] == []


def test_prometheus_understands_every_query(tmp_path: Path):
    rules = [
        {"record": f"query_{number}", "expr": query.expr}
        for number, query in enumerate(queries(job="shardwise"))
    ]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    command = [tool("promtool"), "check", "rules", "--lint=none", str(path)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules)} rules found" in checked.stdout


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_a_dashboard_is_known_by_its_uid_and_explains_its_panels(dashboard: Dashboard):
    assert re.fullmatch(r"[a-z0-9-]{1,40}", dashboard.uid)
    titles = [panel.title for panel in dashboard.panels]
    assert len(set(titles)) == len(titles)
    assert all(panel.says.endswith(".") for panel in dashboard.panels)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_panels_have_a_place_of_their_own_on_the_page(dashboard: Dashboard):
    panels = rendered(dashboard)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or apart
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_every_variable_of_a_query_is_one_of_the_dashboard(dashboard: Dashboard):
    known = {each["name"] for each in rendered(dashboard)["templating"]["list"]}
    for panel in dashboard.panels:
        for query in panel.queries:
            asked = {
                name for name in re.findall(r"\$(\w+)", query.expr) if not name.startswith("__")
            }
            assert asked <= known
            assert "$" not in filled(query.expr, job="shardwise")
