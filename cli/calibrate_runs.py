"""Serving runs to a calibration: names checked, fitted, cross-validated, figures printed.

Invariant: whatever can be found wrong is found before the fit, which may take long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rich.console import Console

from cli.calibrate_report import Comparison, percents, print_comparison, print_moves, working
from cli.calibrate_result import Calibrated, over_shipped, short
from cluster.calibration.cross_validation import (
    By,
    CrossValidation,
    cross_validate,
    figures,
    folds,
    one_model,
)
from cluster.calibration.fit import STAGES, FitResult, distinct, fit_runs
from cluster.calibration.models import models_of
from cluster.calibration.predict import group_of, predict
from cluster.calibration.runs import Run, read_runs
from cluster.costmodel.calibration_file import default_coefficients, operator_coefficients
from cluster.costmodel.engine import BACKENDS
from cluster.errors import InputError, ShardwiseError, UnknownNameError
from cluster.model.model_spec import ModelSpec


class Start(StrEnum):
    """From where, and around what, a fit to runs begins."""

    SHIPPED = "shipped"
    OPERATORS = "operators"


@dataclass(frozen=True, kw_only=True)
class RunsRequest:
    """How to fit to serving runs; `validate` None: by conditions, if the runs allow it."""

    path: Path
    models: Path | None
    start: Start
    validate: tuple[By, ...] | None
    parts: int | None
    jobs: int


def from_runs(request: RunsRequest, console: Console) -> Calibrated:
    """Fit to the runs of a file. Raises InputError naming the run whose names are unknown."""
    runs = read_runs(request.path)
    find = models_of(request.models)
    _check_names(runs, find, source=request.path)
    chosen = distinct(runs)
    asked = request.validate
    wanted = [] if not chosen else _foldable(chosen, find, request, console=console)
    shipped = request.start is Start.SHIPPED
    start = default_coefficients() if shipped else operator_coefficients()
    with working(console, f"fitting to {len(chosen)} runs") as progress:
        fit = fit_runs(chosen, find, start=start, stages=STAGES, progress=progress)
    parameters = _moved(fit, only_changed=shipped)
    loaded = over_shipped(parameters)
    ttft, tpot = predict(chosen, find, coefficients=loaded)
    before = figures(chosen, *predict(chosen, find, coefficients=start))
    after = figures(chosen, ttft, tpot)
    validated: list[CrossValidation] = []
    for by in wanted:
        with working(console, f"cross-validating by {by}") as progress:
            try:
                found = cross_validate(
                    chosen,
                    find,
                    start=start,
                    by=by,
                    parts=request.parts,
                    stages=STAGES,
                    jobs=request.jobs,
                    progress=progress,
                )
            except InputError as error:
                console.print(f"not cross-validated by {by}: {error}", markup=False)
                continue
        validated.append(found)
    console.print(
        f"{request.path}: {len(runs)} rows, {fit.runs} distinct measured runs; "
        f"{len(fit.moved)} coefficients fitted from the {request.start} calibration, of which the "
        f"runs decide about {fit.effective:.0f}; {len(parameters)} written",
        markup=False,
    )
    print_comparison(console, Comparison(before=before, after=after, validated=validated))
    if shipped and (validated or asked):
        console.print(
            "held-out runs are unseen only if the shipped calibration was not fitted to them "
            "(--from operators starts before any run)"
        )
    print_moves(console, fit)
    return Calibrated(
        parameters=parameters,
        basis=f"fitted to {fit.runs} measured runs ({request.path.name})",
        over=start.provenance,
        fit={
            "source": "serving runs",
            "file": request.path.name,
            "rows": len(runs),
            "distinct_runs": fit.runs,
            "start": request.start.value,
            "coefficients": len(fit.moved),
            "effective_coefficients": round(fit.effective, 1),
            "loss_scales": [{"tpot": stage.tpot, "ttft": stage.ttft} for stage in STAGES],
            "median_error_percent": {"before": percents(before), "in_sample": percents(after)},
        },
        cross_validation={
            found.by.value: {
                "median_error_percent": percents(found.held_out),
                "before": percents(found.before),
                "folds": {name: percents(each) for name, each in found.folds.items()},
            }
            | ({"skipped": dict(found.skipped)} if found.skipped else {})
            for found in validated
        },
    )


def _moved(fit: FitResult, *, only_changed: bool) -> dict[str, float]:
    """Fitted values; over the shipped calibration only those that differ from it.

    A fit from elsewhere is written whole, since it lies over other values than it began with.
    """
    return {
        name: short(after)
        for name, before, after in fit.moved
        if not only_changed or short(after) != short(before)
    }


def _foldable(
    runs: Sequence[Run],
    find: Callable[[str], ModelSpec],
    request: RunsRequest,
    *,
    console: Console,
) -> list[By]:
    """By what the runs can be cross-validated, found out before anything takes long."""
    alike = one_model({run.config: find(run.config) for run in runs})
    possible = []
    for by in (By.CONDITIONS,) if request.validate is None else request.validate:
        try:
            folds(runs, by, parts=request.parts, alike=alike)
        except InputError as error:
            if request.validate is not None:
                raise
            console.print(f"not cross-validated: {error}", markup=False)
        else:
            possible.append(by)
    return possible


def _check_names(runs: Sequence[Run], find: Callable[[str], ModelSpec], *, source: Path) -> None:
    """Every model, system and backend is known, or the first run that names it is."""

    def backend(name: str) -> None:
        if name not in BACKENDS:
            raise UnknownNameError(kind="backend", name=name, known=BACKENDS)

    checks: tuple[tuple[str, Callable[[str], object]], ...] = (
        ("config", find),
        ("system", group_of),
        ("backend", backend),
    )
    for column, known in checks:
        first: dict[str, Run] = {}
        for run in runs:
            first.setdefault(getattr(run, column), run)
        for name, run in first.items():
            try:
                known(name)
            except ShardwiseError as error:
                raise InputError(f"{source}: run '{run.id}', column '{column}': {error}") from error
