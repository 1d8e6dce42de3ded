"""Which parameters explain measured times best, and how far off is each point?

Least squares on log(predicted) - log(measured), so that a microsecond and a second count alike,
with the soft-L1 loss, so that a disturbed measurement pulls little (scipy.optimize.least_squares;
Triggs et al. 2000). Parameters are positive and searched in log space; each may be held weakly to
its start. One that must be a fraction is searched beyond 1 first: if it lands there, the
catalogue's peak is too low for this device, the parameter is set to 1, the others are fitted again,
and a note says what it would have been.

Invariants: every parameter returned lies within its bounds; errors are |predicted/measured - 1|.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Model = Callable[[Mapping[str, float]], Floats]
"""Parameters by name to predicted seconds, shape (points,)."""

_LEAST, _BEYOND = 1e-4, 50.0
_OUTLIER = 0.1  # log error from which a point counts less than its square


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A positive unknown; `fraction` bounds it to (0, 1]. `low` and `high` bound any other.

    `hold` is how many points' worth of evidence `start` is, at a log error of 1: enough to settle
    what the points leave open, too little to bias what they tell.
    """

    name: str
    start: float
    hold: float = 0.0
    fraction: bool = False
    low: float = _LEAST
    high: float = _BEYOND


@dataclass(frozen=True, kw_only=True)
class PartReport:
    """How well one part was fitted: errors are fractions of the measured time."""

    part: str
    points: int
    median_error: float
    worst_error: float
    worst_point: str


@dataclass(frozen=True, kw_only=True)
class FitReport:
    """All parts of a fit. `observed` are figures measured beside the coefficients, SI units."""

    parts: tuple[PartReport, ...] = ()
    notes: tuple[str, ...] = ()
    observed: Mapping[str, float] = field(default_factory=dict)

    @property
    def points(self) -> int:
        """Points of all parts."""
        return sum(part.points for part in self.parts)

    @property
    def median_error(self) -> float:
        """Median |error| of the parts, weighted by their points; 0 for an empty fit."""
        errors = [part.median_error for part in self.parts for _ in range(part.points)]
        return float(np.median(errors)) if errors else 0.0

    @property
    def worst(self) -> PartReport | None:
        """The part with the point that is furthest off."""
        return max(self.parts, key=lambda part: part.worst_error, default=None)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Coefficients by their full names, and the report."""

    coefficients: Mapping[str, float]
    report: FitReport

    @classmethod
    def joined(cls, fits: Sequence[Fit]) -> Fit:
        """Several fits of different coefficients as one."""
        return cls(
            coefficients={name: value for fit in fits for name, value in fit.coefficients.items()},
            report=FitReport(
                parts=tuple(part for fit in fits for part in fit.report.parts),
                notes=tuple(note for fit in fits for note in fit.report.notes),
                observed={
                    name: value for fit in fits for name, value in fit.report.observed.items()
                },
            ),
        )

    def named(self, part: str, coefficients: Mapping[str, float]) -> Fit:
        """The same fit under full names, its notes saying which part they are of."""
        notes = tuple(f"{part}: {note}" for note in self.report.notes)
        return Fit(coefficients=coefficients, report=replace(self.report, notes=notes))

    def noted(self, *notes: str) -> Fit:
        """The same fit with further notes."""
        return replace(self, report=replace(self.report, notes=(*self.report.notes, *notes)))


def fit_times(
    part: str,
    points: Sequence[object],
    *,
    seconds: Sequence[float],
    parameters: Sequence[Parameter],
    model: Model,
) -> Fit:
    """Fit `parameters` of `model` to the measured `seconds` of `points` (equal lengths)."""
    measured = np.log(np.asarray(seconds, dtype=np.float64))
    values = _solve(parameters, measured=measured, model=model, fixed={})
    notes = []
    fixed: dict[str, float] = {}
    for parameter in parameters:
        if parameter.fraction and values[parameter.name] > 1.0:
            fixed[parameter.name] = 1.0
            notes.append(
                f"{parameter.name} would be {values[parameter.name]:.3g}; clipped to 1, since "
                "nothing beats its peak: the catalogue's figure is below what was measured."
            )
    if fixed:
        free = [parameter for parameter in parameters if parameter.name not in fixed]
        values = _solve(free, measured=measured, model=model, fixed=fixed)
        # What is left may now lean on its own limit.
        values |= {p.name: min(values[p.name], 1.0) for p in free if p.fraction}
    errors = np.abs(model(values) / np.exp(measured) - 1.0)
    worst = int(np.argmax(errors))
    report = PartReport(
        part=part,
        points=len(points),
        median_error=float(np.median(errors)),
        worst_error=float(errors[worst]),
        worst_point=str(points[worst]),
    )
    return Fit(coefficients=values, report=FitReport(parts=(report,), notes=tuple(notes)))


def _solve(
    parameters: Sequence[Parameter],
    *,
    measured: Floats,
    model: Model,
    fixed: Mapping[str, float],
) -> dict[str, float]:
    names = [parameter.name for parameter in parameters]
    if not names:
        return dict(fixed)
    from scipy.optimize import least_squares  # a quarter of a second that few commands need

    def residuals(logs: Floats) -> Floats:
        values = dict(zip(names, np.exp(logs).tolist(), strict=True))
        errors = np.log(model({**values, **fixed})) - measured
        return np.concatenate([errors, hold * (logs - start)])

    hold = np.sqrt([parameter.hold for parameter in parameters])
    low = np.log([parameter.low for parameter in parameters])
    high = np.log([parameter.high for parameter in parameters])
    start = np.clip(np.log([p.start for p in parameters]), low + 1e-9, high - 1e-9)
    found = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=_OUTLIER, max_nfev=2000
    )
    return dict(zip(names, np.exp(found.x).tolist(), strict=True)) | dict(fixed)
