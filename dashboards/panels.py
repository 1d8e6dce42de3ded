"""What is a dashboard? Plain data: sections of panels, panels of queries.

`dashboards.render` says it in Grafana's words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Drawn = Literal["timeseries", "stat", "table"]
# Grafana's names of units.
Unit = Literal["none", "short", "s", "bytes", "percentunit", "reqps", "ops"]


@dataclass(frozen=True, kw_only=True)
class Query:
    """`expr`: PromQL. `legend`: of its series, with labels in double braces."""

    expr: str
    legend: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """`says`: what it shows, and when to worry. `width`: of 24 columns.

    `alarm`: value from which on it is red.
    """

    title: str
    says: str
    queries: tuple[Query, ...]
    unit: Unit = "short"
    drawn: Drawn = "timeseries"
    width: int = 12
    height: int = 8
    alarm: float | None = None


@dataclass(frozen=True, kw_only=True)
class Section:
    """A row of the page with its panels."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True)
class Variable:
    """Beside those that every dashboard has: something to be set by hand."""

    name: str
    label: str
    default: str


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """`uid`: by which Grafana knows it, for ever; 40 characters at most."""

    uid: str
    title: str
    says: str
    sections: tuple[Section, ...]
    variables: tuple[Variable, ...] = ()

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All, in their order."""
        return tuple(panel for section in self.sections for panel in section.panels)


def stat(title: str, says: str, query: Query, *, unit: Unit = "short", **more: float) -> Panel:
    """One number. `more`: `alarm`."""
    return Panel(
        title=title,
        says=says,
        queries=(query,),
        unit=unit,
        drawn="stat",
        width=4,
        height=4,
        alarm=more.get("alarm"),
    )
