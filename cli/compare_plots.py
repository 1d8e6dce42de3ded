"""How do several clusters compare at a glance? Their frontiers in one chart, their costs in bars.

One figure of two panels, PNG or HTML. The PNG is drawn without pyplot, so that no global state is
left behind; the HTML carries its script and opens offline. A cluster without a layout or a price
keeps its place among the bars, named as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cli.plots import check_ending
from cluster.errors import InputError
from rl_search.compare import Outcome

_X = "tokens/s per user"
_Y = "output tokens/s per device"
_COST = "USD per million output tokens"


def write_comparison(outcomes: Sequence[Outcome], path: Path, *, title: str) -> None:
    """Write the comparison to `path`: `.png` or `.html`. Raises InputError for another ending."""
    check_ending(path)
    writer = {".png": _write_png, ".html": _write_html}[path.suffix.lower()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer(outcomes, path, title)
    except OSError as error:
        raise InputError(f"--plot {path} cannot be written ({error}).") from error


def _labels(outcomes: Sequence[Outcome]) -> list[str]:
    """One label per bar, distinct even where a cluster is named twice."""
    names = [outcome.name for outcome in outcomes]
    return [
        name if names.count(name) == 1 else f"{name} ({index + 1})"
        for index, name in enumerate(names)
    ]


def _bar_text(outcome: Outcome) -> str:
    if outcome.result is None:
        return "no layout fits"
    cost = outcome.usd_per_million_tokens
    return "no price" if cost is None else f"{cost:.3g}"


def _write_png(outcomes: Sequence[Outcome], path: Path, title: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 6), dpi=120)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    labels = _labels(outcomes)
    for index, (label, outcome) in enumerate(zip(labels, outcomes, strict=True)):
        row = outcome.best
        if outcome.result is None or row is None:
            continue
        color, points = f"C{index}", outcome.result.frontier
        left.plot(
            points.tokens_per_s_per_user,
            points.tokens_per_s_per_device,
            marker="o",
            markersize=3,
            color=color,
            label=label,
        )
        left.scatter(
            [float(row.estimates.tokens_per_s_per_user[row.index])],
            [float(row.estimates.tokens_per_s_per_device[row.index])],
            marker="*",
            s=200,
            color=color,
            zorder=3,
        )
    left.set_xlabel(_X)
    left.set_ylabel(_Y)
    left.set_title("frontiers within the SLO (star: best layout)")
    left.grid(visible=True, alpha=0.3)
    if left.get_lines():
        left.legend()
    bars = right.bar(
        labels,
        [outcome.usd_per_million_tokens or 0.0 for outcome in outcomes],
        color=[f"C{index}" for index in range(len(outcomes))],
    )
    right.bar_label(bars, labels=[_bar_text(outcome) for outcome in outcomes])
    right.set_ylabel(_COST)
    right.tick_params(axis="x", rotation=20)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, format="png")


def _write_html(outcomes: Sequence[Outcome], path: Path, title: str) -> None:
    import plotly.graph_objects as go
    from plotly.colors import qualitative
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=2, column_widths=[0.6, 0.4])
    labels = _labels(outcomes)
    colors = [qualitative.D3[index % len(qualitative.D3)] for index in range(len(outcomes))]
    for label, outcome, color in zip(labels, outcomes, colors, strict=True):
        row = outcome.best
        if outcome.result is None or row is None:
            continue
        points = outcome.result.frontier
        figure.add_trace(
            go.Scatter(
                x=points.tokens_per_s_per_user.tolist(),
                y=points.tokens_per_s_per_device.tolist(),
                text=[
                    f"{layout.describe()}<br>{layout.max_num_seqs} in flight, "
                    f"chunk {layout.max_num_batched_tokens}"
                    for layout in points.layouts
                ],
                mode="lines+markers",
                line={"color": color},
                name=label,
            ),
            row=1,
            col=1,
        )
        figure.add_trace(
            go.Scatter(
                x=[float(row.estimates.tokens_per_s_per_user[row.index])],
                y=[float(row.estimates.tokens_per_s_per_device[row.index])],
                text=[row.layout.describe()],
                mode="markers",
                marker={"symbol": "star", "size": 16, "color": color},
                name=f"{label}: best",
            ),
            row=1,
            col=1,
        )
    figure.add_trace(
        go.Bar(
            x=labels,
            y=[outcome.usd_per_million_tokens or 0.0 for outcome in outcomes],
            text=[_bar_text(outcome) for outcome in outcomes],
            marker={"color": colors},
            showlegend=False,
        ),
        row=1,
        col=2,
    )
    figure.update_xaxes(title_text=_X, row=1, col=1)
    figure.update_yaxes(title_text=_Y, row=1, col=1)
    figure.update_yaxes(title_text=_COST, row=1, col=2)
    figure.update_layout(title=title, template="plotly_white")
    path.write_text(figure.to_html(include_plotlyjs=True, full_html=True), encoding="utf-8")
