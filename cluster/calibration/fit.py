"""Coefficients from measured serving runs: a robust fit of a physical model, held by its priors.

Minimises, over the logarithms x of the coefficients,

    sum_i s_t^2 ln(1 + (ln(TPOT_i) / s_t)^2) + w^2 s_f^2 ln(1 + (ln(TTFT_i) / s_f)^2)
      + lambda sum_j ((x_j - prior_j) / spread_j)^2,

the arguments being ratios of predicted to measured. The Cauchy loss lets a run that contradicts the
model count little, because benchmarks hold warm-ups, time-outs and mislabelled rows. Its scale s is
lowered in stages (annealing): wide first, so that whole groups of runs far from the start pull.
Each stage is Levenberg-Marquardt on reweighted residuals, with forward differences evaluated only
on the runs that a coefficient touches.

No coefficient belongs to a run, a model or a layout; the narrowest is one engine version's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from cluster.calibration.predict import Lowered, evaluate_runs, lower, rows_of, with_builds
from cluster.calibration.priors import Prior, fitted_names, prior_of
from cluster.calibration.runs import Run
from cluster.costmodel.coefficients import Coefficients
from cluster.errors import InputError
from cluster.model.model_spec import ModelSpec

Floats = NDArray[np.float64]
Progress = Callable[[str], None]

_STEP = 1e-4  # of a logarithm, forward differences
_LEAST_EFFECT = 1e-6  # of a coefficient's logarithm on that of any time
_FEWEST_RUNS = 20
_EDGE = 1e-5  # of a logarithm: at a bound
_TRIES = 12  # dampings of one step
_ENOUGH = 2e-4  # improvement of the loss below which a stage ends


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One annealing stage: scales of the loss for TPOT and TTFT, and most iterations."""

    tpot: float
    ttft: float
    iterations: int


STAGES = (
    Stage(tpot=0.30, ttft=0.50, iterations=15),
    Stage(tpot=0.15, ttft=0.25, iterations=15),
    Stage(tpot=0.08, ttft=0.15, iterations=15),
    Stage(tpot=0.05, ttft=0.12, iterations=20),
)
TTFT_WEIGHT = 0.7
PRIOR_WEIGHT = 0.05 / 0.06  # of the TPOT scale: how many scales a spread is worth


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """Fitted coefficients; `moved` those that runs had a say in, with prior and fitted value."""

    coefficients: Coefficients
    moved: tuple[tuple[str, float, float], ...]
    effective: float  # parameters the data decided, the trace of the shrinkage matrix
    runs: int


def distinct(runs: Sequence[Run]) -> tuple[Run, ...]:
    """`runs` with both measurements, each measured fact once: copies under other ids dropped."""
    seen: set[tuple[object, ...]] = set()
    kept: list[Run] = []
    for run in runs:
        if run.ttft_s is None or run.tpot_s is None:
            continue
        key = tuple(getattr(run, f.name) for f in fields(Run) if f.name not in ("id", "model"))
        if key not in seen:
            seen.add(key)
            kept.append(run)
    return tuple(kept)


def fit_runs(
    runs: Sequence[Run],
    models: Callable[[str], ModelSpec],
    *,
    start: Coefficients,
    stages: Sequence[Stage] = STAGES,
    progress: Progress = lambda _: None,
) -> FitResult:
    """Fit to the measured among `runs`, from and around `start`.

    Raises InputError with fewer than 20 distinct measured runs.
    """
    chosen = distinct(runs)
    if len(chosen) < _FEWEST_RUNS:
        raise InputError(
            f"{len(chosen)} distinct runs with ttft_ms and tpot_ms, a fit needs {_FEWEST_RUNS}. "
            "Fix: add measured runs, or use the shipped calibration."
        )
    base = with_builds(start, chosen)
    lowered = lower(chosen, models, coefficients=base)
    problem = _Problem(lowered, chosen, base)
    x = problem.prior.centre.copy()
    effective = 0.0
    for stage in stages:
        x, effective = problem.solve(x, stage, progress)
    values = base.values.copy()
    values[problem.prior.positions] = np.exp(x)
    moved = tuple(
        (name, float(np.exp(before)), float(np.exp(after)))
        for name, before, after in zip(problem.prior.names, problem.prior.centre, x, strict=True)
    )
    return FitResult(
        coefficients=base.with_values(values), moved=moved, effective=effective, runs=len(chosen)
    )


class _Problem:
    """Residuals and their derivatives over the coefficients that the runs depend on."""

    def __init__(self, lowered: Lowered, runs: Sequence[Run], base: Coefficients) -> None:
        self._base = base
        self._lowered = lowered
        self._measured = np.log(
            np.array([[run.tpot_s or np.nan, run.ttft_s or np.nan] for run in runs]).T
        )
        names = fitted_names(base)
        self._parts: list[tuple[NDArray[np.int64], Lowered]] = []
        kept: list[str] = []
        cache: dict[bytes, Lowered] = {}
        residuals = self.residuals(base.values)
        for name in names:
            rows = rows_of(lowered, base.position(name))
            if not len(rows):
                continue
            part = cache.setdefault(rows.tobytes(), lowered.take(rows))
            self._parts.append((rows, part))
            kept.append(name)
        prior = prior_of(kept, base)
        # A coefficient without any effect on these runs is left at its prior.
        columns = [self._column(prior.centre, j, residuals, prior=prior) for j in range(len(kept))]
        # (Not just those that are 0: a logarithm and back again costs the last digit.)
        live = [j for j, column in enumerate(columns) if np.abs(column).max() > _LEAST_EFFECT]
        self._parts = [self._parts[j] for j in live]
        self.prior: Prior = prior_of([kept[j] for j in live], base)

    def residuals(self, values: Floats) -> Floats:
        """ln(predicted / measured), rows TPOT and TTFT: (2, n)."""
        return np.asarray(self._of(self._lowered, values) - self._measured)

    def _of(self, lowered: Lowered, values: Floats) -> Floats:
        state = evaluate_runs(lowered, self._base.with_values(values))
        return np.log(np.stack([state.tpot_s, state.ttft_s]))

    def _values(self, x: Floats, prior: Prior) -> Floats:
        values = self._base.values.copy()
        values[prior.positions] = np.exp(x)
        return values

    def _column(self, x: Floats, j: int, residuals: Floats, *, prior: Prior) -> Floats:
        rows, part = self._parts[j]
        step = _STEP if x[j] + _STEP < prior.high[j] else -_STEP
        moved = x.copy()
        moved[j] += step
        column = np.zeros_like(residuals)
        there = self._of(part, self._values(moved, prior)) - self._measured[:, rows]
        column[:, rows] = (there - residuals[:, rows]) / step
        return column

    def solve(self, x: Floats, stage: Stage, progress: Progress) -> tuple[Floats, float]:
        """The stage's optimum from `x`, and the effective number of parameters there."""
        prior = self.prior
        scale = np.array([[stage.tpot], [stage.ttft]])
        weight = np.array([[stage.tpot**2], [(TTFT_WEIGHT * stage.ttft) ** 2]])
        pull = (PRIOR_WEIGHT * stage.tpot / prior.spread) ** 2

        def cost(residuals: Floats, at: Floats) -> float:
            loss = (weight * np.log1p((residuals / scale) ** 2)).sum()
            return float(loss + (pull * (at - prior.centre) ** 2).sum())

        x = np.clip(x, prior.low, prior.high)
        residuals = self.residuals(self._values(x, prior))
        current, damping, effective = cost(residuals, x), 1e-3, 0.0
        for iteration in range(stage.iterations):
            jacobian = np.stack(
                [self._column(x, j, residuals, prior=prior).ravel() for j in range(len(x))], axis=1
            )
            scaled = residuals / scale
            weights = (weight / scale**2 / (1.0 + scaled**2)).ravel()
            curvature = (jacobian * weights[:, None]).T @ jacobian
            normal = curvature + np.diag(pull)
            gradient = jacobian.T @ (weights * residuals.ravel()) + pull * (x - prior.centre)
            effective = float(np.trace(np.linalg.solve(normal, curvature)))
            # Coefficients that press against a bound would bend the step of all others.
            pressed = ((x <= prior.low + _EDGE) & (gradient > 0.0)) | (
                (x >= prior.high - _EDGE) & (gradient < 0.0)
            )
            free = np.flatnonzero(~pressed)
            found = None
            for _ in range(_TRIES):
                damped = normal[np.ix_(free, free)] + damping * np.diag(np.diag(normal)[free])
                step = np.zeros_like(x)
                step[free] = np.clip(-np.linalg.solve(damped, gradient[free]), -0.5, 0.5)
                trial = np.clip(x + step, prior.low, prior.high)
                there = self.residuals(self._values(trial, prior))
                if cost(there, trial) < current:
                    found = trial, there
                    break
                damping *= 5.0
            if found is None:
                break
            x, residuals = found
            improved, current = current, cost(residuals, x)
            damping = max(damping / 4.0, 1e-6)
            median = np.median(np.abs(np.expm1(residuals)), axis=1) * 100.0
            progress(
                f"scale {stage.tpot:g}, iteration {iteration + 1}: median error "
                f"TPOT {median[0]:.1f} %, TTFT {median[1]:.1f} %"
            )
            if (improved - current) < _ENOUGH * improved:
                break
        return x, effective
