"""What is a forecaster?

A pair of functions. `predict` is quick and runs every tick: from the history and the coefficients
it says the load at a horizon. `fit`, for those that have coefficients to estimate, is slow and
runs now and then; the coefficients are plain numbers in the controller's state, so that a replay
finds the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autoscaler.history import History

Coefficients = tuple[float, ...]

# Digits kept of a fit: optimisers of other machines differ in the ones after, replays may not.
DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class Forecaster:
    """`predict(history, horizon_s, coefficients)`: load `horizon_s` after the newest point.

    `fit(history, season_s)`: coefficients, empty as long as there is too little to estimate them
    from; None if there are none at all. `season_s` is the season the operator set, 0 if it is to
    be found. `history` is never empty. Both may raise or answer NaN: see `autoscaler.forecast`.
    `uses_library`: whether its fit imports statsmodels.
    """

    predict: Callable[[History, float, Coefficients], float]
    fit: Callable[[History, float], Coefficients] | None = None
    uses_library: bool = False
