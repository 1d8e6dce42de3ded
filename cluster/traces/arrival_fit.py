"""Which arrival process does a trace follow?

The gaps, divided by their mean, are fitted by maximum likelihood with three laws,

    gamma:    ln a - psi(a) = -mean(ln x)                        (Minka 2002)
    weibull:  sum(x^k ln x) / sum(x^k) - 1/k = mean(ln x)
    exponential, which has no shape to fit,

and the law of the least AIC = 2 parameters - 2 ln L is taken; it keeps the gaps' mean. The
Kolmogorov-Smirnov statistic says how far its distribution is from the gaps' (0: equal;
1.36 / sqrt(n) is the usual 5 % bound).

Clocks are coarse (Mooncake's steps 3 s): requests of one instant are spread at random over the
smallest step seen, as no law has gaps of 0. A maximum-likelihood shape describes the many short
gaps; `cv` is the gaps' own, which a few long silences can lift far above the law's. `fit_windows`
takes those apart, and `fitted_process` makes arrivals like the trace's, window by window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from cluster.errors import InputError
from cluster.traces.arrivals import ArrivalProcess, Floats, Phase
from cluster.traces.gaps import ExponentialGaps, GapLaw, gamma_gaps, weibull_gaps
from cluster.traces.request import TraceRequest

_LEAST_REQUESTS = 3  # two gaps: the least that vary
_LEAST_TO_CHOOSE = 20  # fewer gaps tell no shape
_SHAPES = (1e-3, 1e4)


@dataclass(frozen=True, kw_only=True)
class ArrivalFit:
    """A law of gaps fitted to `requests` arrivals at `rate` requests/s.

    `cv`: the gaps' standard deviation over their mean, as measured (not the law's). `ks`: the
    Kolmogorov-Smirnov statistic. `aic` by law; smaller is better.
    """

    requests: int
    rate: float
    cv: float
    gaps: GapLaw
    ks: float
    aic: Mapping[str, float]

    @property
    def process(self) -> ArrivalProcess:
        """An endless process of this rate and law."""
        return ArrivalProcess((Phase(math.inf, self.rate, self.gaps),))


@dataclass(frozen=True, kw_only=True)
class WindowFit:
    """A window of a trace; `fit` is None where too few requests came to fit a law."""

    start_s: float
    duration_s: float
    requests: int
    fit: ArrivalFit | None


def fit_arrivals(requests: Iterable[TraceRequest]) -> ArrivalFit:
    """The law of all gaps of a trace.

    Raises InputError for fewer than 3 requests, or all at one instant.
    """
    times = np.array([request.arrival_s for request in requests])
    found = _fit(_spread(times))
    if found is None:
        raise InputError(
            f"{len(times)} requests, {'all at one instant' if len(times) > 2 else 'too few'}: "
            f"a fit needs {_LEAST_REQUESTS} or more at different times."
        )
    return found


def fit_windows(requests: Iterable[TraceRequest], *, window_s: float) -> tuple[WindowFit, ...]:
    """A law for each window of `window_s` seconds from the start of the trace."""
    if not 0.0 < window_s < math.inf:
        raise InputError(f"windows of {window_s:g} s; they must be longer than 0 s.")
    times = _spread(np.array([request.arrival_s for request in requests]))
    if not len(times):
        raise InputError("a trace without requests has no arrivals to fit.")
    count = int(times[-1] // window_s) + 1
    edges = np.searchsorted(times, np.arange(1, count) * window_s)
    return tuple(
        WindowFit(
            start_s=number * window_s,
            duration_s=window_s,
            requests=len(inside),
            fit=_fit(inside),
        )
        for number, inside in enumerate(np.split(times, edges))
    )


def fitted_process(requests: Iterable[TraceRequest], *, window_s: float) -> ArrivalProcess:
    """Arrivals like the trace's: in each window its count on average, by its own law."""
    return ArrivalProcess(
        tuple(
            Phase(
                window.duration_s,
                window.requests / window.duration_s,
                window.fit.gaps if window.fit is not None else ExponentialGaps(),
            )
            for window in fit_windows(requests, window_s=window_s)
        )
    )


def _spread(times: Floats) -> Floats:
    """The times with those of one instant spread over the smallest step."""
    steps = np.diff(times)
    if not (steps > 0.0).any() or (steps > 0.0).all():
        return times
    rng = np.random.Generator(np.random.PCG64(0))
    return np.sort(times + rng.random(len(times)) * steps[steps > 0.0].min())


def _fit(times: Floats) -> ArrivalFit | None:
    if len(times) < _LEAST_REQUESTS or times[-1] <= times[0]:
        return None
    gaps = np.diff(times)
    mean = float(gaps.mean())
    # Two draws of one step can still coincide in the last digit.
    scaled = np.maximum(gaps / mean, 1e-12)
    laws = _FITS if len(gaps) >= _LEAST_TO_CHOOSE else _FITS[:1]
    fitted = [fit(scaled) for fit in laws]
    aic = {law.name: value for law, value in fitted}
    best = min(fitted, key=lambda one: one[1])[0]
    return ArrivalFit(
        requests=len(times),
        rate=1.0 / mean,
        cv=float(gaps.std() / mean),
        gaps=best,
        ks=_ks(best, scaled),
        aic=aic,
    )


def _exponential(gaps: Floats) -> tuple[GapLaw, float]:
    return ExponentialGaps(), 2.0 + 2.0 * float(gaps.sum())


def _gamma(gaps: Floats) -> tuple[GapLaw, float]:
    """Scaled gaps have mean 1, so the scale is 1 / shape."""
    from scipy.special import gammaln, psi  # a quarter of a second that few commands need

    logs = float(np.log(gaps).mean())
    shape = _root(lambda a: math.log(a) - float(psi(a)) + logs)
    likelihood = shape * math.log(shape) - float(gammaln(shape)) + (shape - 1.0) * logs - shape
    return gamma_gaps(shape=shape), 4.0 - 2.0 * len(gaps) * likelihood


def _weibull(gaps: Floats) -> tuple[GapLaw, float]:
    logs = np.log(gaps)
    mean_log, most = float(logs.mean()), float(logs.max())

    def slope(shape: float) -> float:
        powers = np.exp(shape * (logs - most))
        return 1.0 / shape + mean_log - float((powers * logs).sum() / powers.sum())

    shape = _root(slope)
    scale = math.exp(most) * float(np.exp(shape * (logs - most)).mean()) ** (1.0 / shape)
    likelihood = math.log(shape) - shape * math.log(scale) + (shape - 1.0) * mean_log - 1.0
    return weibull_gaps(shape=shape), 4.0 - 2.0 * len(gaps) * likelihood


# The exponential first: the law of too few gaps.
_FITS: tuple[Callable[[Floats], tuple[GapLaw, float]], ...] = (_exponential, _gamma, _weibull)


def _root(falling: Callable[[float], float]) -> float:
    """Where a function of the shape that falls through 0 does so, held within bounds."""
    from scipy.optimize import brentq

    low, high = _SHAPES
    if falling(low) <= 0.0:
        return low
    if falling(high) >= 0.0:
        return high
    return float(brentq(falling, low, high))


def _ks(law: GapLaw, gaps: Floats) -> float:
    """The largest distance between the law's and the gaps' distribution."""
    ordered = np.sort(gaps)
    shares = law.cdf(ordered)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max(np.abs(shares - steps[1:]).max(), np.abs(shares - steps[:-1]).max()))
