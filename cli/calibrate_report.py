"""How the findings of `shardwise calibrate` look: errors, moves, parts, and a file as a table.

Errors are percentages, times milliseconds. Invariant: nothing is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml
from rich.console import Console

from cli.console import milliseconds, table
from cluster.calibration.cross_validation import CrossValidation, Figures
from cluster.calibration.fit import FitResult
from cluster.calibration.nsys import COVERS
from cluster.calibration.priors import spread_of
from cluster.costmodel.calibration_file import CalibrationFile
from cluster.costmodel.coefficients import Coefficients

if TYPE_CHECKING:  # scipy takes half a second, of every command
    from cluster.calibration.robust import Fit

_MOVES = 12


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Errors with the start's coefficients, with the fitted ones, and on runs left out."""

    before: Figures
    after: Figures
    validated: Sequence[CrossValidation]


@contextmanager
def working(console: Console, title: str) -> Iterator[Callable[[str], None]]:
    """Tell how something long is doing: one line that changes, or lines where output is kept."""
    if not console.is_terminal:
        console.print(title, markup=False)
        yield lambda text: console.print(f"  {text}", markup=False)
        return
    with console.status(title) as status:
        yield lambda text: status.update(f"{title}: {text}")


def percents(found: Figures) -> dict[str, float | int | None]:
    """Figures for a file: percent with two decimals, null over nothing."""

    def percent(fraction: float) -> float | None:
        return round(fraction * 100.0, 2) if math.isfinite(fraction) else None

    return {
        "runs": found.runs,
        "tpot": percent(found.tpot),
        "ttft": percent(found.ttft),
        "throughput_per_gpu": percent(found.throughput),
        "layout_ratio": percent(found.layout_ratio),
    }


def print_comparison(console: Console, found: Comparison) -> None:
    """Median errors in and out of sample."""
    console.print()
    made = table(
        "median |error| %", "", "runs", "TPOT", "TTFT", "tok/s/GPU", "ratio of two layouts"
    )
    made.add_row("before", *_cells(found.before))
    made.add_row("fitted, in sample", *_cells(found.after))
    for each in found.validated:
        made.add_row(f"left out by {each.by}", *_cells(each.held_out))
        made.add_row("  before, same runs", *_cells(each.before))
        if len(each.folds) > 1:
            for name, figures in each.folds.items():
                made.add_row(f"  {name}", *_cells(figures))
    console.print(made)
    for each in found.validated:
        for name, reason in each.skipped.items():
            console.print(f"left out by {each.by}, no figures for {name}: {reason}", markup=False)


def print_moves(console: Console, fit: FitResult) -> None:
    """The coefficients that moved furthest, in spreads of what was believed before."""
    moves = sorted(
        (
            (math.log(after / before) / spread_of(name), name, before, after)
            for name, before, after in fit.moved
        ),
        key=lambda move: -abs(move[0]),
    )
    console.print()
    made = table("furthest moved", "coefficient", "before", "fitted", "spreads")
    for spreads, name, before, after in moves[:_MOVES]:
        made.add_row(name, f"{before:.4g}", f"{after:.4g}", f"{spreads:+.1f}")
    console.print(made)


def print_measured(console: Console, fit: Fit, *, base: Coefficients) -> None:
    """What microbenchmarks say: coefficients beside the shipped ones, errors, figures, notes."""
    made = table("measured", "coefficient", "shipped", "measured", "ratio")
    for name, value in fit.coefficients.items():
        if name in base:
            old = base.value(name)
            made.add_row(name, f"{old:.4g}", f"{value:.4g}", f"{value / old:.2f}")
        else:
            made.add_row(f"{name} (not written)", "-", f"{value:.4g}", "-")
    console.print(made)
    for part in fit.report.parts:
        console.print(
            f"{part.part}: {part.points} points, median error {part.median_error:.1%}, "
            f"worst {part.worst_error:.1%} at {part.worst_point}",
            markup=False,
        )
    for name, value in fit.report.observed.items():
        console.print(f"{name}: {value:.4g}", markup=False)
    for note in fit.report.notes:
        console.print(f"note: {note}", markup=False)


def print_trace(
    console: Console,
    *,
    measured: Mapping[str, float],
    before: Mapping[str, float],
    after: Mapping[str, float],
    ratios: Mapping[str, float],
) -> None:
    """Measured and predicted times of a step by part of the trace."""
    made = table(
        "one step on one device, ms", "part", "measured", "predicted", "ratio", "then predicted"
    )
    for part, seconds in measured.items():
        covered = COVERS.get(part, ())
        old, new = (sum(parts.get(name, 0.0) for name in covered) for parts in (before, after))
        ratio = f"{ratios[part]:.2f}" if part in ratios else "-"
        made.add_row(
            part,
            milliseconds(seconds),
            milliseconds(old) if old > 0.0 else "-",
            ratio,
            milliseconds(new) if new > 0.0 else "-",
        )
    console.print(made)


def print_calibration(
    console: Console,
    file: CalibrationFile,
    *,
    names: Sequence[str],
    loaded: Coefficients,
    operators: Coefficients,
) -> None:
    """A calibration: what it rests on, then its coefficients beside the operator tables'."""
    console.print(f"{file.name}: {file.provenance}", markup=False)
    for title, facts in (("fit", file.fit), ("cross-validation", file.cross_validation)):
        if facts:
            text = yaml.safe_dump({title: facts}, sort_keys=False, width=100)
            console.print(text.rstrip(), markup=False)
    if not names:
        console.print("it changes no coefficient")
        return
    console.print()
    made = table("", "coefficient", "value", "operator tables", "ratio", "source")
    made.columns[-1].justify = "left"
    made.columns[-1].no_wrap = False  # or the numbers would be cut
    for name in names:
        value = loaded.value(name)
        # A version's own factors stand in for the backend's, which are 1 in the tables.
        old = operators.value(name) if name in operators else 1.0
        made.add_row(name, f"{value:.4g}", f"{old:.4g}", f"{value / old:.2f}", loaded.source(name))
    console.print(made)


def _cells(found: Figures) -> tuple[str, ...]:
    shown = (found.tpot, found.ttft, found.throughput, found.layout_ratio)
    return (
        str(found.runs),
        *(f"{value * 100:.1f}" if math.isfinite(value) else "-" for value in shown),
    )
