"""How far may a fit move a coefficient? A prior per name: centre, spread, bounds.

The centre is what operator tables say (`cluster/calibrations/operators.yaml`); the spread is the
standard deviation of the logarithm that we are ready to believe: tight where a table was measured
(a fifth), wide for host work that no table holds. Shares end at 1, everything else within a factor
of 20. With few runs the fit stays at the tables; that, and not the number of runs, is what keeps
two hundred coefficients from being two hundred free parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.coefficients import Coefficients, is_share

Floats = NDArray[np.float64]

FROZEN = ("*.serial_s", "linear.*.item_s", "linear.*.half_context", "*.cpu.*")
"""Not fitted: runs do not tell them apart from what stands beside them."""

SPREADS: tuple[tuple[str, float], ...] = (
    ("build.*.time", 0.04),
    ("build.*.prefill", 0.1),
    ("build.*.request", 0.5),
    ("build.*.burst", 0.7),
    ("engine.*.gemm", 0.05),
    ("engine.*.experts", 0.2),
    ("engine.*.attention", 0.12),
    ("engine.*.kernels", 0.25),
    ("engine.*.prompt_token_s", 1.0),
    ("engine.*.step_s", 0.8),
    ("engine.*.prefill_step_s", 0.8),
    ("engine.*.wait_steps", 0.5),
    ("engine.*", 0.7),
    ("service.*.random", 0.7),
    ("service.*", 0.5),
    ("kernels.linear", 0.4),
    ("kernel*", 0.25),
    ("link.*.efficiency", 0.2),
    ("link.*.one_shot", 0.25),
    ("link.ring_s", 0.4),
    ("link.*", 0.3),
    ("network.*", 0.2),
    ("all_to_all.*", 0.3),
    ("speculation.*", 0.2),
    ("experts.slice", 0.5),
    ("experts.skew", 0.4),
    ("experts.hot", 0.2),
    ("*.fp8_share", 0.15),
    ("*.decode_mbu", 0.15),
    ("*.decode_mfu", 0.3),
    ("*.mbu", 0.2),
    ("*.half_tokens", 0.4),
    ("*.half_context", 0.4),
    ("*.item_s", 0.3),
    ("elementwise.*", 0.4),
    ("*", 0.25),
)
"""Patterns of names, first match wins: spread of the logarithm."""

_REACH = 20.0


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Columns over the fitted coefficients, logarithms: (p,) each."""

    names: tuple[str, ...]
    positions: NDArray[np.int64]
    centre: Floats
    spread: Floats
    low: Floats
    high: Floats


def prior_of(names: Sequence[str], centre: Coefficients) -> Prior:
    """The prior of `names`, centred at their values in `centre`."""
    values = np.array([centre.value(name) for name in names])
    high = np.array([1.0 if is_share(name) else np.inf for name in names])
    return Prior(
        names=tuple(names),
        positions=np.array([centre.position(name) for name in names], dtype=np.int64),
        centre=np.log(values),
        spread=np.array([spread_of(name) for name in names]),
        low=np.log(values / _REACH),
        high=np.log(np.minimum(values * _REACH, high)),
    )


def fitted_names(coefficients: Coefficients) -> tuple[str, ...]:
    """Those that a fit to serving runs may move."""
    return tuple(
        name
        for name in coefficients.names
        if not any(fnmatchcase(name, pattern) for pattern in FROZEN)
    )


def spread_of(name: str) -> float:
    """Standard deviation of the logarithm of the coefficient called `name`."""
    return next(spread for pattern, spread in SPREADS if fnmatchcase(name, pattern))
