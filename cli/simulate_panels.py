"""Which curves tell what happened? A run's time series and distributions, ready to be drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cli.simulate_run import Run
from cluster.sim.histogram import Histogram
from cluster.sim.record import Window

_MINUTES_FROM_S = 600.0
_POINTS = 400


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve; NaN is a gap."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Curves over one pair of axes. `bound`: a level to draw beside them, and what it is."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    bound: tuple[str, float] | None = None
    log_x: bool = False


def panels(run: Run) -> tuple[Panel, ...]:
    """Seven over time, the last one of distributions."""
    series, slo = run.outcome.record.series, run.case.setup.slo
    duration_s = len(series.windows) * series.width_s
    scale, unit = (60.0, "min") if duration_s > _MINUTES_FROM_S else (1.0, "s")
    times = [(index + 0.5) * series.width_s / scale for index in range(len(series.windows))]
    pools = [pool.name for pool in run.case.setup.pools]

    def line(name: str, value: Callable[[Window], float]) -> Line:
        return Line(name=name, xs=times, ys=[value(window) for window in series.windows])

    def gauges(*kinds: str) -> list[Line]:
        names = [f"{pool} {kind}" for kind in kinds for pool in pools]
        return [line(name, _gauge(name)) for name in names if _is_drawn(name, series.windows)]

    def over_time(
        title: str, y: str, lines: Sequence[Line], *, bound: tuple[str, float] | None = None
    ) -> Panel:
        return Panel(title=title, x=f"time, {unit}", y=y, lines=lines, bound=bound)

    width_s = series.width_s
    return (
        over_time(
            "arrivals and completions",
            "requests/s",
            [
                line("arrived", lambda window: window.arrived / width_s),
                line("completed", lambda window: window.completed / width_s),
            ],
        ),
        over_time(
            "time to first token",
            "ms",
            [
                line("p50", lambda window: 1e3 * window.ttft.quantile(0.5)),
                line("p99", lambda window: 1e3 * window.ttft.quantile(0.99)),
            ],
            bound=None if slo.ttft_s is None else ("SLO", 1e3 * slo.ttft_s),
        ),
        over_time(
            "time per output token",
            "ms",
            [
                line("p50", lambda window: 1e3 * window.tpot.quantile(0.5)),
                line("p99", lambda window: 1e3 * window.tpot.quantile(0.99)),
            ],
            bound=None if slo.tpot_s is None else ("SLO", 1e3 * slo.tpot_s),
        ),
        over_time("requests in line and running", "requests", gauges("queued", "running")),
        over_time("replicas", "replicas", gauges("ready", "desired")),
        over_time("degradation tier", "tier", [line("tier", _gauge("tier"))]),
        over_time("fullest KV cache", "share", gauges("KV usage")),
        _distributions(run),
    )


def _distributions(run: Run) -> Panel:
    record = run.outcome.record
    named = (
        ("TTFT", record.ttft),
        ("TPOT", record.tpot),
        ("ITL", record.itl),
        ("E2E", record.e2e),
    )
    return Panel(
        title="distributions",
        x="ms",
        y="share at or below",
        lines=[_cdf(name, histogram) for name, histogram in named if histogram.count],
        log_x=True,
    )


def _cdf(name: str, histogram: Histogram) -> Line:
    points = histogram.curve(_POINTS)
    return Line(
        name=name, xs=[1e3 * value for value, _ in points], ys=[share for _, share in points]
    )


def _gauge(name: str) -> Callable[[Window], float]:
    return lambda window: window.gauges.get(name, math.nan)


def _is_drawn(name: str, windows: Sequence[Window]) -> bool:
    return any(name in window.gauges for window in windows)
