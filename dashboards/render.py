"""How is a dashboard said in Grafana's words? JSON of its dashboard model, the classic one.

The model is that of schema version 39 (Grafana 10 and later read it, newer ones migrate it). Only
what we set is written: Grafana fills in the rest. Datasource, service and pool are variables, so
that one file serves everybody.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dashboards.panels import Dashboard, Panel, Query, Section, Variable

Json = dict[str, Any]

SCHEMA_VERSION = 39
TAG = "shardwise"
_COLUMNS = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def rendered(dashboard: Dashboard) -> Json:
    """The dashboard, as Grafana imports it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.says,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "timezone": "browser",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": list(_variables(dashboard))},
        "links": [
            {
                "type": "dashboards",
                "title": "Shardwise",
                "tags": [TAG],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "panels": list(_panels(dashboard.sections)),
    }


def text(dashboard: Dashboard) -> str:
    """The file of a dashboard."""
    return json.dumps(rendered(dashboard), indent=2, ensure_ascii=False) + "\n"


def with_datasource(made: Json, *, name: str, uid: str) -> Json:
    """A rendered dashboard that begins with this datasource chosen."""
    first, *others = made["templating"]["list"]
    chosen = {**first, "current": {"text": name, "value": uid}}
    return {**made, "templating": {"list": [chosen, *others]}}


def _variables(dashboard: Dashboard) -> Iterator[Json]:
    yield {
        "name": "datasource",
        "label": "Datasource",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
    }
    yield _query_variable("job", "Service", "label_values(shardwise_tier, job)")
    yield {
        **_query_variable(
            "pool", "Pool", 'label_values(shardwise_ready_replicas{job="$job"}, pool)'
        ),
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
    for variable in dashboard.variables:
        yield _textbox(variable)


def _query_variable(name: str, label: str, query: str) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
    }


def _textbox(variable: Variable) -> Json:
    value = {"text": variable.default, "value": variable.default}
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "textbox",
        "query": variable.default,
        "current": value,
        "options": [{**value, "selected": True}],
    }


def _panels(sections: tuple[Section, ...]) -> Iterator[Json]:
    number, top = 0, 0
    for section in sections:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": section.title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": top, "w": _COLUMNS, "h": 1},
        }
        top += 1
        left, tallest = 0, 0
        for panel in section.panels:
            if left + panel.width > _COLUMNS:
                top, left, tallest = top + tallest, 0, 0
            number += 1
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            yield {"id": number, "gridPos": place, **_panel(panel)}
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest


def _panel(panel: Panel) -> Json:
    steps: list[Json] = [{"color": "green", "value": None}]
    if panel.alarm is not None:
        steps.append({"color": "red", "value": panel.alarm})
    defaults: Json = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if panel.drawn == "timeseries" and panel.alarm is not None:
        defaults["custom"] = {"thresholdsStyle": {"mode": "line"}}
    made: Json = {
        "type": panel.drawn,
        "title": panel.title,
        "description": panel.says,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            _target(query, ref=chr(ord("A") + place), drawn=panel.drawn)
            for place, query in enumerate(panel.queries)
        ],
    }
    if panel.drawn == "stat":
        made["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value"}
    if panel.drawn == "table":
        hidden = {"excludeByName": {"Time": True}}
        made["transformations"] = [{"id": "organize", "options": hidden}]
    return made


def _target(query: Query, *, ref: str, drawn: str) -> Json:
    now = drawn != "timeseries"
    return {
        "refId": ref,
        "datasource": _SOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "instant": now,
        "range": not now,
        "format": "table" if drawn == "table" else "time_series",
    }
