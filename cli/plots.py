"""How do the throughput-interactivity frontier and the ranked layouts look? PNG and HTML files.

The PNG is drawn on a figure of its own, without pyplot, so that no global state is left behind.
The HTML carries its script: it opens offline.
"""

from __future__ import annotations

from pathlib import Path

from cluster.errors import InputError
from rl_search.planner import PlanResult

_X = "tokens/s per user"
_Y = "output tokens/s per device"
_ENDINGS = (".html", ".png")


def check_ending(path: Path) -> None:
    """Raise InputError where `path` ends in no format that plots are written in."""
    if path.suffix.lower() not in _ENDINGS:
        raise InputError(f"--plot {path}: must end with {' or '.join(_ENDINGS)}.")


def write_plot(result: PlanResult, path: Path, *, title: str) -> None:
    """Write the frontier to `path`: `.png` or `.html`. Raises InputError for another ending."""
    check_ending(path)
    writer = {".png": _write_png, ".html": _write_html}[path.suffix.lower()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer(result, path, title)
    except OSError as error:
        raise InputError(f"--plot {path} cannot be written ({error}).") from error


def _chosen(result: PlanResult) -> tuple[float, float, str]:
    row = result.rows[0]
    return (
        float(row.estimates.tokens_per_s_per_user[row.index]),
        float(row.estimates.tokens_per_s_per_device[row.index]),
        row.layout.describe(),
    )


def _write_png(result: PlanResult, path: Path, title: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    points = result.frontier
    axes.plot(
        points.tokens_per_s_per_user,
        points.tokens_per_s_per_device,
        marker="o",
        markersize=4,
        label="frontier within the SLO",
    )
    others = result.rows[1:]
    axes.scatter(
        [float(row.estimates.tokens_per_s_per_user[row.index]) for row in others],
        [float(row.estimates.tokens_per_s_per_device[row.index]) for row in others],
        marker="x",
        color="grey",
        label="other ranked layouts",
    )
    x, y, name = _chosen(result)
    axes.scatter([x], [y], marker="*", s=220, color="crimson", zorder=3, label=f"chosen: {name}")
    axes.set_xlabel(_X)
    axes.set_ylabel(_Y)
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, format="png")


def _write_html(result: PlanResult, path: Path, title: str) -> None:
    import plotly.graph_objects as go

    points = result.frontier
    hover = [
        f"{layout.describe()}<br>{layout.max_num_seqs} in flight, "
        f"chunk {layout.max_num_batched_tokens}"
        for layout in points.layouts
    ]
    x, y, name = _chosen(result)
    figure = go.Figure(
        [
            go.Scatter(
                x=points.tokens_per_s_per_user.tolist(),
                y=points.tokens_per_s_per_device.tolist(),
                text=hover,
                mode="lines+markers",
                name="frontier within the SLO",
            ),
            go.Scatter(
                x=[x],
                y=[y],
                text=[name],
                mode="markers",
                marker={"symbol": "star", "size": 16, "color": "crimson"},
                name="chosen",
            ),
        ]
    )
    figure.update_layout(title=title, xaxis_title=_X, yaxis_title=_Y, template="plotly_white")
    path.write_text(figure.to_html(include_plotlyjs=True, full_html=True), encoding="utf-8")
