"""The tables of docs/metrics.md, from the contract of metrics, the dashboards and the alerts.

python -m cli.metric_docs          print the page
python -m cli.metric_docs --write  write the tables into docs/metrics.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import yaml

from dashboards.table import DASHBOARDS
from serving.telemetry.account_rows import ACCOUNT_METRICS
from serving.telemetry.engine_rows import ENGINE_METRICS
from serving.telemetry.gateway_rows import GATEWAY_METRICS
from serving.telemetry.metric import Label, Metric

_ROOT = Path(__file__).resolve().parents[1]
METRICS_PATH = _ROOT / "docs" / "metrics.md"
ALERTS_PATH = _ROOT / "helm" / "shardwise" / "files" / "alerts.yaml"

_NAME = re.compile(r"\bshardwise_\w+")
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def users() -> dict[str, list[str]]:
    """Who asks for each series: dashboards and alerts, by their names."""
    found: dict[str, list[str]] = {}
    asked = [
        (dashboard.title.removeprefix("Shardwise / "), query.expr)
        for dashboard in DASHBOARDS
        for panel in dashboard.panels
        for query in panel.queries
    ]
    rules = yaml.safe_load(ALERTS_PATH.read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            link = (
                f"[{rule['alert'].removeprefix('Shardwise')}](runbook.md#{rule['alert'].lower()})"
            )
            asked.append((link, rule["expr"]))
    for who, expression in asked:
        for name in _NAME.findall(expression):
            if who not in found.setdefault(name, []):
                found[name].append(who)
    return found


def page_text() -> str:
    """docs/metrics.md with its tables as they should be."""
    used = users()
    tables = {
        "gateway": _table(GATEWAY_METRICS, used),
        "controller": _table(ACCOUNT_METRICS, used),
        "engine": _engine_table(),
        "labels": _labels(GATEWAY_METRICS + ACCOUNT_METRICS),
    }
    return _TABLE.sub(
        lambda found: f"{found[1]}{tables[found[2]]}{found[3]}",
        METRICS_PATH.read_text(encoding="utf-8"),
    )


def _table(metrics: Iterable[Metric], used: dict[str, list[str]]) -> str:
    lines = ["| series | type | unit | labels | meaning | used by |", "|---|---|---|---|---|---|"]
    for metric in metrics:
        who = [user for name in metric.series for user in used.get(name, [])]
        labels = ", ".join(metric.label_names)
        lines.append(
            f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {metric.says} | "
            f"{', '.join(dict.fromkeys(who))} |"
        )
    return "\n".join(lines) + "\n"


def _engine_table() -> str:
    lines = ["| series | type | unit | told on as, and read for |", "|---|---|---|---|"]
    lines += [f"| `{m.name}` | {m.kind} | {m.unit} | {m.says} |" for m in ENGINE_METRICS]
    return "\n".join(lines) + "\n"


def _labels(metrics: Iterable[Metric]) -> str:
    labels: dict[tuple[str, str], list[str]] = {}
    for metric in metrics:
        for label in metric.labels:
            who = labels.setdefault((label.name, _values(label)), [])
            who.append(metric.name.removeprefix("shardwise_"))
    lines = ["| label | values | of |", "|---|---|---|"]
    for (name, values), of in labels.items():
        shown = ", ".join(of) if len(of) <= 3 else f"{len(of)} series"
        lines.append(f"| `{name}` | {values} | {shown} |")
    return "\n".join(lines) + "\n"


def _values(label: Label) -> str:
    if label.name == "reason":
        return "[one of its action's](runbook.md#reasons)"
    return ", ".join(f"`{value}`" for value in label.values) or label.bound


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        METRICS_PATH.write_text(page_text(), encoding="utf-8")
    else:
        sys.stdout.write(page_text())
