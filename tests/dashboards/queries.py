"""All queries of all dashboards, with Grafana's variables filled in as it would."""

from __future__ import annotations

from dataclasses import dataclass

from dashboards.table import DASHBOARDS

_VARIABLES = {
    "$__rate_interval": "1m",
    "$__range": "1m",
    "$pool": ".*",
    "$objective": "0.99",
    "$horizon": "2s",
}


@dataclass(frozen=True)
class Asked:
    """One query of one panel."""

    where: str
    expr: str


def filled(expr: str, *, job: str) -> str:
    """The query of one service."""
    for name, value in {**_VARIABLES, "$job": job}.items():
        expr = expr.replace(name, value)
    return expr


def queries(*, job: str) -> list[Asked]:
    """Of all dashboards."""
    return [
        Asked(f"{dashboard.uid}: {panel.title}: {query.legend}", filled(query.expr, job=job))
        for dashboard in DASHBOARDS
        for panel in dashboard.panels
        for query in panel.queries
    ]
