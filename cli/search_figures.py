"""How did a search get on, and what is there to choose from? Its figures, drawn by plotly.

Several runs of one question share their figures, one colour each. Names are escaped: plotly reads
markup in every text.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # plotly takes a third of a second, of every command
    from plotly.graph_objects import Figure, Scatter

LEAST_REGRET = 1e-6  # a logarithm has no place for 0: what is at the optimum is drawn here
_CALLS = "calls of the evaluator"
_HEIGHT = 420
_ROW = 26  # of a heat map, pixels
_DASHES = {"heuristic": "dash", "exact": "dot"}


@dataclass(frozen=True)
class Run:
    """One run document, the name that tells it from the others, and its colour."""

    label: str
    document: Mapping[str, Any]
    color: str

    @property
    def best_value(self) -> float | None:
        """The best that satisfies everything."""
        best = self.document["best"]
        return None if best is None else float(best["value"])

    @property
    def exact(self) -> float | None:
        """The exact optimum where it is known."""
        exact = self.document["exact"]
        return None if exact is None else float(exact["value"])

    @property
    def curve(self) -> list[tuple[int, float]]:
        """Best value after so many calls, up to the last call."""
        points = [(int(calls), float(value)) for calls, value in self.document["curve"]]
        calls = int(self.document["calls"])
        return [*points, (calls, points[-1][1])] if points and points[-1][0] < calls else points

    def regret(self, value: float) -> float | None:
        """How far below the exact optimum `value` is, a share of it and at least 0."""
        return None if self.exact is None else max(1.0 - value / self.exact, 0.0)


def runs_of(documents: Sequence[Mapping[str, Any]]) -> tuple[Run, ...]:
    """Each with a name of its own: method and seed, numbered where these are the same."""
    from plotly.colors import qualitative

    names = [f"{document['method']}, seed {document['seed']}" for document in documents]
    return tuple(
        Run(
            label=name if names.count(name) == 1 else f"{name} ({index + 1})",
            document=document,
            color=qualitative.D3[index % len(qualitative.D3)],
        )
        for index, (name, document) in enumerate(zip(names, documents, strict=True))
    )


def shown(text: object) -> str:
    """As plotly shows it, which reads markup but knows no name for a quotation mark."""
    return html.escape(str(text), quote=False)


def curve_figure(runs: Sequence[Run]) -> Figure:
    """Best value over calls, beside what the heuristic and the exact search come to."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for run in runs:
        if run.curve:
            figure.add_trace(_line(run, run.curve))
    for name, value in _levels(runs):
        figure.add_hline(
            y=value,
            line={"dash": _DASHES[name], "color": "dimgrey", "width": 1},
            annotation_text=f"{name} {value:,.4g}",
            annotation_position="bottom left" if name == "heuristic" else "top left",
        )
    figure.update_xaxes(rangemode="tozero")
    return _laid_out(figure, _CALLS, f"best {shown(runs[0].document['unit'])}")


def regret_figure(runs: Sequence[Run]) -> Figure:
    """How far below the exact optimum, over calls, on a logarithmic axis."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for run in runs:
        points = [(calls, run.regret(value)) for calls, value in run.curve]
        known = [(calls, max(miss, LEAST_REGRET)) for calls, miss in points if miss is not None]
        if known:
            figure.add_trace(_line(run, known, hover="%{y:.3%} below after %{x:,} calls"))
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(type="log", tickformat="~p")
    return _laid_out(figure, _CALLS, "below the exact optimum")


def confidence_figure(run: Run) -> Figure:
    """The largest probability of each head over calls; a line where a chunk of calls ends."""
    import plotly.graph_objects as go

    told = run.document["confidence"]
    names = list(told[0]["heads"])
    figure = go.Figure(
        go.Heatmap(
            x=[entry["calls"] for entry in told],
            y=[shown(name) for name in names],
            z=[[entry["heads"][name] for entry in told] for name in names],
            zmin=0.0,
            zmax=1.0,
            colorscale="Viridis",
            colorbar={"title": {"text": "largest<br>probability"}},
            hovertemplate="%{y} after %{x:,} calls: %{z:.3f}<extra></extra>",
        )
    )
    for before, after in pairwise(told):
        if before["chunk"] != after["chunk"]:
            middle = (before["calls"] + after["calls"]) / 2.0
            figure.add_vline(x=middle, line={"color": "crimson", "width": 2})
    _laid_out(figure, _CALLS, "")
    figure.update_yaxes(autorange="reversed", ticksuffix=" ")
    figure.update_layout(height=160 + _ROW * len(names))
    return figure


def pareto_figure(runs: Sequence[Run]) -> Figure:
    """Throughput against interactivity of what was found, and the strategy chosen."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for run in runs:
        points = sorted(
            run.document["pareto"]["points"], key=lambda point: point["tokens_per_s_per_user"]
        )
        if not points:
            continue
        figure.add_trace(_points(run, points, mode="lines+markers", name=run.label))
        chosen = [point for point in points if point["chosen"]]
        if chosen:
            made = _points(run, chosen, mode="markers", name=f"{run.label}: chosen")
            made.marker = {"symbol": "star", "size": 16, "color": run.color}
            figure.add_trace(made)
    return _laid_out(figure, "tokens/s per user", "output tokens/s per device")


def _line(run: Run, points: Sequence[tuple[int, float]], *, hover: str = "") -> Scatter:
    """A staircase: a value holds until a better one is found."""
    import plotly.graph_objects as go

    return go.Scatter(
        x=[calls for calls, _ in points],
        y=[value for _, value in points],
        mode="lines+markers",
        line={"shape": "hv", "color": run.color},
        marker={"size": 5},
        name=shown(run.label),
        hovertemplate=f"{hover or '%{y:,.5g} after %{x:,} calls'}<extra></extra>",
    )


def _points(run: Run, points: Sequence[Mapping[str, Any]], *, mode: str, name: str) -> Scatter:
    import plotly.graph_objects as go

    return go.Scatter(
        x=[point["tokens_per_s_per_user"] for point in points],
        y=[point["tokens_per_s_per_device"] for point in points],
        text=[shown(point["layout"]) for point in points],
        mode=mode,
        line={"color": run.color},
        name=shown(name),
        hovertemplate="%{text}<br>%{x:,.4g} tokens/s/user, %{y:,.4g} a device<extra></extra>",
    )


def _levels(runs: Sequence[Run]) -> Iterator[tuple[str, float]]:
    """What the curves are held against, each value once."""
    for name in _DASHES:
        values = [run.document[name]["value"] for run in runs if run.document[name] is not None]
        for value in dict.fromkeys(values):
            yield name, float(value)


def _laid_out(figure: Figure, x: str, y: str) -> Figure:
    figure.update_xaxes(title_text=x)
    figure.update_yaxes(title_text=y)
    figure.update_layout(
        template="plotly_white",
        height=_HEIGHT,
        margin={"l": 70, "r": 20, "t": 30, "b": 60},
        showlegend=len(figure.data) > 1,
    )
    return figure
