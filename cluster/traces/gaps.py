"""How are the times between arrivals distributed, when their mean is 1?

    exponential   cv = 1: independent users (a Poisson process)
    gamma         shape a = 1 / cv^2, scale cv^2
    weibull       shape k with G(1 + 2/k) / G(1 + 1/k)^2 = 1 + cv^2 (G: gamma function)
    constant      cv = 0

ServeGen (arXiv:2505.09999) found gamma best for some production services and Weibull for others;
BurstGPT (arXiv:2401.17644) generates its bursts by gamma.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cluster.errors import InputError

Floats = NDArray[np.float64]

_LEAST_CV, _MOST_CV = 0.01, 100.0
_SHAPES = (0.1, 200.0)  # Weibull shapes of which cv covers the range above


class GapLaw(Protocol):
    """A law of gaps with mean 1."""

    @property
    def name(self) -> str:
        """The law's name."""

    @property
    def cv(self) -> float:
        """Standard deviation over mean."""

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """`count` gaps."""

    def cdf(self, gaps: Floats) -> Floats:
        """Share of gaps up to each of `gaps`."""


@dataclass(frozen=True)
class ExponentialGaps:
    """Independent users."""

    name = "exponential"
    cv = 1.0

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """`count` gaps."""
        return rng.standard_exponential(count)

    def cdf(self, gaps: Floats) -> Floats:
        """Share of gaps up to each of `gaps`."""
        return np.asarray(-np.expm1(-gaps))


@dataclass(frozen=True)
class GammaGaps:
    """Bursts for cv > 1, pacing for cv < 1."""

    cv: float

    name = "gamma"

    def __post_init__(self) -> None:
        check_cv(self.cv)

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """`count` gaps."""
        return rng.standard_gamma(1.0 / self.cv**2, count) * self.cv**2

    def cdf(self, gaps: Floats) -> Floats:
        """Share of gaps up to each of `gaps`."""
        from scipy.special import gammainc  # a quarter of a second that few commands need

        return np.asarray(gammainc(1.0 / self.cv**2, gaps / self.cv**2))


@dataclass(frozen=True)
class WeibullGaps:
    """Bursts with a heavier tail than gamma's for cv > 1."""

    cv: float

    name = "weibull"

    def __post_init__(self) -> None:
        check_cv(self.cv)

    @property
    def shape(self) -> float:
        """The shape with this variation."""
        from scipy.optimize import brentq

        return float(brentq(lambda shape: _weibull_cv(shape) - self.cv, *_SHAPES))

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """`count` gaps."""
        shape = self.shape
        return rng.weibull(shape, count) / exp(_log_gamma(1.0 + 1.0 / shape))

    def cdf(self, gaps: Floats) -> Floats:
        """Share of gaps up to each of `gaps`."""
        shape = self.shape
        return np.asarray(-np.expm1(-((gaps * exp(_log_gamma(1.0 + 1.0 / shape))) ** shape)))


@dataclass(frozen=True)
class ConstantGaps:
    """A metronome."""

    name = "constant"
    cv = 0.0

    def draw(self, rng: np.random.Generator, count: int) -> Floats:  # noqa: ARG002  a law's shape
        """`count` gaps."""
        return np.ones(count)

    def cdf(self, gaps: Floats) -> Floats:
        """Share of gaps up to each of `gaps`."""
        return np.asarray(gaps >= 1.0, dtype=np.float64)


def gamma_gaps(*, shape: float) -> GammaGaps:
    """The gamma law of a shape, held within the cv that `check_cv` allows."""
    return GammaGaps(float(np.clip(shape**-0.5, _LEAST_CV, _MOST_CV)))


def weibull_gaps(*, shape: float) -> WeibullGaps:
    """The Weibull law of a shape, held within the cv that `check_cv` allows."""
    held = float(np.clip(shape, *_SHAPES))
    return WeibullGaps(float(np.clip(_weibull_cv(held), _LEAST_CV, _MOST_CV)))


def check_cv(cv: float) -> None:
    """Raise InputError for a variation that no gamma or Weibull law is made for."""
    if not _LEAST_CV <= cv <= _MOST_CV:
        raise InputError(
            f"the arrivals' cv is {cv:g}; it must be within {_LEAST_CV} to {_MOST_CV:g} "
            "(equal gaps: use constant arrivals)."
        )


def _log_gamma(value: float) -> float:
    from scipy.special import gammaln

    return float(gammaln(value))


def _weibull_cv(shape: float) -> float:
    ratio = _log_gamma(1.0 + 2.0 / shape) - 2.0 * _log_gamma(1.0 + 1.0 / shape)
    return float(np.sqrt(np.expm1(ratio)))
