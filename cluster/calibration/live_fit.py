"""Which step model explains what was measured of a live engine?

A step of n sequences decoding, holding c tokens together, and of chunks of p_i tokens after s_i:

    decode = D(n) + a c
    mixed  = P(n + sum p_i) + r (n + chunks - 1) + a c + q sum p_i (s_i + p_i / 2)

D and P are piecewise linear with knots where there are points, P(1) = D(1). P is a step that
samples one token; r is what each further sampled row adds, a what reading a token of context takes,
q what a (query, key) pair of a prompt takes. A lone prompt is the sum of its chunks' steps. All is
linear in its non-negative unknowns and relative errors count:

    min sum w_i (fitted_i / measured_i - 1)^2,    scipy.optimize.nnls

where w falls with a point's spread and, in a few rounds, for points beyond the usual error (Huber's
weights), so that a measurement somebody else's load disturbed pulls little.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cluster.calibration.live_file import (
    DecodePoint,
    Fitted,
    Front,
    Knots,
    Point,
    PromptPoint,
    Residuals,
    Step,
)
from cluster.errors import InputError

Floats = NDArray[np.float64]

_ROUNDS = 8
_LEAST_ERROR = 0.02  # closer than this is never an outlier
_USUAL_SPREAD = 0.1
_FLOOR_S = 1e-7  # no step is free


def fit_live(points: Sequence[Point], *, chunk: int) -> Fitted:
    """The step model's numbers. Raises InputError where decode or prompt points are missing."""
    decode = sorted({point.sequences for point in points if isinstance(point, DecodePoint)})
    prompt = _prompt_knots(points, chunk)
    if not decode or decode[0] != 1 or not prompt:
        raise InputError(
            "too little was measured for a fit: it needs decode steps of one sequence and of more, "
            "and prompts alone. Fix: measure longer (without --quick)."
        )
    design = _Design(decode=decode, prompt=prompt)
    matrix = np.array([design.row(point.steps(chunk)) for point in points])
    measured = np.array([point.seconds for point in points])
    spread = np.array([point.spread for point in points])
    found = _robust(matrix / measured[:, None], sure=1.0 / (1.0 + (spread / _USUAL_SPREAD) ** 2))
    errors = np.abs(matrix @ found / measured - 1.0)
    worst = int(np.argmax(errors))
    shared = float(found[0])
    behind = len(decode)
    prompts = [shared, *found[behind : behind + len(prompt)]]
    sequence_s, context_token_s, pair_s = found[-3:]
    return Fitted(
        decode=_knots(decode, found[:behind]),
        prompt=_knots([1, *prompt], prompts),
        sequence_s=_short(sequence_s),
        context_token_s=_short(context_token_s),
        pair_s=_short(pair_s),
        residuals=Residuals(
            median=_short(float(np.median(errors))),
            worst=_short(float(errors[worst])),
            worst_point=points[worst].name,
        ),
    )


def fit_front(
    prompts: Sequence[int],
    entered_s: Sequence[float],
    *,
    out_s: Sequence[float],
    client_over_engine: float,
) -> Front:
    """The front end's share: on the way in a line over prompt tokens, on the way out a median."""
    if not entered_s or not out_s:
        raise InputError("no lone request was measured. Fix: measure longer (without --quick).")
    typical = float(np.median(entered_s))
    rows = np.array([[1.0, float(tokens)] for tokens in prompts])
    least, slope = _robust_line(rows, np.array(entered_s), scale=typical)
    low, middle, high = np.quantile(out_s, (0.25, 0.5, 0.75))
    return Front(
        into_s=_short(least),
        into_token_s=_short(slope),
        out_s=_short(middle),
        out_spread_s=_short(high - low),
        client_over_engine=_short(client_over_engine),
        samples=len(out_s),
    )


class _Design:
    """Unknowns in order: D at its knots, P at its knots past 1, r, a, q."""

    def __init__(self, *, decode: Sequence[int], prompt: Sequence[int]) -> None:
        self._decode = list(decode)
        self._prompt = [1, *prompt]
        self._places = [0, *range(len(decode), len(decode) + len(prompt))]
        self._size = len(decode) + len(prompt) + 3

    def row(self, steps: Sequence[Step]) -> Floats:
        """Coefficients of the unknowns in the seconds of these steps together."""
        row = np.zeros(self._size)
        for step in steps:
            if step.chunks:
                tokens = step.sequences + sum(chunk.tokens for chunk in step.chunks)
                for knot, share in hats(self._prompt, tokens):
                    row[self._places[knot]] += share
                row[-3] += step.sequences + len(step.chunks) - 1
                row[-1] += sum(
                    chunk.tokens * (chunk.start + chunk.tokens / 2.0) for chunk in step.chunks
                )
            else:
                for knot, share in hats(self._decode, step.sequences):
                    row[knot] += share
            row[-2] += step.context
        return row


def hats(knots: Sequence[int], at: float) -> list[tuple[int, float]]:
    """Shares of the knots in a piecewise linear curve at `at`; its ends go on as they end."""
    if len(knots) == 1:
        return [(0, 1.0)]
    high = min(max(bisect_left(knots, at), 1), len(knots) - 1)
    share = (at - knots[high - 1]) / (knots[high] - knots[high - 1])
    return [(high - 1, 1.0 - share), (high, share)]


def _prompt_knots(points: Sequence[Point], chunk: int) -> list[int]:
    """Sizes of the first steps of lone prompts: there P is measured directly."""
    lone = {min(point.tokens, chunk) for point in points if isinstance(point, PromptPoint)}
    return sorted(lone - {1})


def _robust(relative: Floats, *, sure: Floats) -> Floats:
    """Non-negative x for which relative @ x is near 1, outliers and the unsure weighing less."""
    from scipy.optimize import nnls  # a quarter of a second that few commands need

    weights = sure
    found = np.ones(relative.shape[1])
    for _ in range(_ROUNDS):
        roots = np.sqrt(weights)
        found, _ = nnls(relative * roots[:, None], roots)
        errors = np.abs(relative @ found - 1.0)
        weights = sure * _huber(errors, usual=max(_LEAST_ERROR, 2.0 * float(np.median(errors))))
    return np.asarray(found, dtype=np.float64)


def _huber(errors: Floats, *, usual: float) -> Floats:
    """1 for errors up to the usual, then falling as they grow."""
    return usual / np.maximum(errors, usual)


def _robust_line(rows: Floats, values: Floats, *, scale: float) -> tuple[float, float]:
    from scipy.optimize import nnls

    weights = np.ones(len(values))
    found = np.zeros(2)
    for _ in range(_ROUNDS):
        roots = np.sqrt(weights)
        found, _ = nnls(rows * roots[:, None], values * roots)
        errors = np.abs(rows @ found - values)
        weights = _huber(errors, usual=max(0.1 * scale, 1.5 * float(np.median(errors))))
    return float(found[0]), float(found[1])


def _knots(at: Sequence[int], seconds: Sequence[float] | Floats) -> Knots:
    return Knots(at=list(at), seconds=[max(_FLOOR_S, _short(float(each))) for each in seconds])


def _short(value: float) -> float:
    """Five digits: more than any measurement has."""
    return float(f"{value:.5g}") if math.isfinite(value) else 0.0
