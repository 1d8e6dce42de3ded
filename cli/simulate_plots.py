"""How did a simulation go over time? One page of panels, PNG or HTML by the file's ending.

The PNG is drawn without pyplot, so that no global state is left behind; the HTML carries its
script and opens offline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from cli.plots import check_ending
from cli.simulate_panels import Panel
from cluster.errors import InputError

_COLUMNS = 2


def write_panels(panels: Sequence[Panel], path: Path, *, title: str) -> None:
    """Write to `path`: `.png` or `.html`. Raises InputError for another ending."""
    check_ending(path)
    writer = {".png": _write_png, ".html": _write_html}[path.suffix.lower()]
    try:
        writer(panels, path, title)
    except OSError as error:
        raise InputError(f"--plot {path} cannot be written ({error}).") from error


def _write_png(panels: Sequence[Panel], path: Path, title: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = -(-len(panels) // _COLUMNS)
    figure = Figure(figsize=(13, 3.0 * rows), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    axes = figure.subplots(rows, _COLUMNS, squeeze=False).flatten()
    for panel, each in zip(panels, axes, strict=False):
        for line in panel.lines:
            each.plot(line.xs, line.ys, label=line.name, linewidth=1.0)
        if panel.bound is not None:
            name, level = panel.bound
            each.axhline(level, label=name, color="crimson", linestyle="--", linewidth=1.0)
        if panel.log_x and panel.lines:
            each.set_xscale("log")
        each.set_title(panel.title, fontsize="medium")
        each.set_xlabel(panel.x)
        each.set_ylabel(panel.y)
        each.set_ylim(bottom=0.0)
        each.grid(visible=True, alpha=0.3)
        if each.get_legend_handles_labels()[0]:
            each.legend(fontsize="small")
    figure.savefig(path, format="png")


def _write_html(panels: Sequence[Panel], path: Path, title: str) -> None:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    rows = -(-len(panels) // _COLUMNS)
    figure = make_subplots(
        rows=rows, cols=_COLUMNS, subplot_titles=[panel.title for panel in panels]
    )
    for index, panel in enumerate(panels):
        row, column = index // _COLUMNS + 1, index % _COLUMNS + 1
        for line in panel.lines:
            ys = [None if math.isnan(y) else y for y in line.ys]
            drawn = go.Scatter(
                x=list(line.xs),
                y=ys,
                name=f"{panel.title}: {line.name}",
                mode="lines",
                hovertemplate=f"{line.name}: %{{y:.4g}}<extra></extra>",
            )
            figure.add_trace(drawn, row=row, col=column)
        if panel.bound is not None:
            name, level = panel.bound
            figure.add_hline(
                y=level,
                line={"dash": "dash", "color": "crimson"},
                annotation_text=name,
                row=row,
                col=column,
            )
        figure.update_xaxes(
            title_text=panel.x, type="log" if panel.log_x else "linear", row=row, col=column
        )
        figure.update_yaxes(title_text=panel.y, rangemode="tozero", row=row, col=column)
    figure.update_layout(title=title, template="plotly_white", height=330 * rows)
    path.write_text(figure.to_html(include_plotlyjs=True, full_html=True), encoding="utf-8")
