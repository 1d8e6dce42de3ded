"""When do requests come? Phases, each with a rate and a law of gaps.

A stationary process is one endless phase. Over phases the process runs in operational time u, the
expected number of requests so far: gaps of mean 1 add up to u, and

    t = start_i + (u - U_i) / rate_i,   U_i = sum of duration_j rate_j for j < i.

A gap that outlasts its phase goes on in the next one at that phase's rate, so no border adds or
loses requests, and a silent phase (rate 0) has none.

To add a process: write a function that makes one, and a line in `ARRIVALS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.errors import InputError
from cluster.traces.gaps import ConstantGaps, ExponentialGaps, GammaGaps, GapLaw, WeibullGaps

Floats = NDArray[np.float64]

_BLOCK = 4096  # gaps drawn at once
_MOST_RATE = 1e9


@dataclass(frozen=True)
class Phase:
    """`duration_s` seconds (possibly infinite) at `rate` requests/s (possibly 0)."""

    duration_s: float
    rate: float
    gaps: GapLaw = ExponentialGaps()  # noqa: RUF009  frozen

    def __post_init__(self) -> None:
        if not self.duration_s > 0.0:
            raise InputError(f"a phase of {self.duration_s:g} s; it must be longer than 0 s.")
        if not 0.0 <= self.rate <= _MOST_RATE:
            raise InputError(f"a rate of {self.rate:g} requests/s; it must be within 0 to 10^9.")


@dataclass(frozen=True)
class ArrivalProcess:
    """Arrivals over phases; they end with the last phase."""

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        if not any(phase.rate > 0.0 for phase in self.phases):
            raise InputError("arrivals need a rate above 0 requests/s in at least one phase.")
        if any(math.isinf(phase.duration_s) for phase in self.phases[:-1]):
            raise InputError("only the last phase of arrivals may be endless.")

    @property
    def duration_s(self) -> float:
        """How long all phases take, possibly infinite."""
        return sum(phase.duration_s for phase in self.phases)

    @property
    def expected_requests(self) -> float:
        """Requests of all phases on average, possibly infinite."""
        return sum(phase.duration_s * phase.rate for phase in self.phases if phase.rate > 0.0)

    def times(self, rng: np.random.Generator) -> Iterator[Floats]:
        """Arrival times in blocks, never falling."""
        durations = np.array([phase.duration_s for phase in self.phases])
        rates = np.array([phase.rate for phase in self.phases])
        starts = np.concatenate(([0.0], np.cumsum(durations[:-1])))
        counts = np.where(rates > 0.0, durations, 0.0) * rates
        ends = np.cumsum(counts)
        begins = np.concatenate(([0.0], ends[:-1]))
        now, last = 0.0, 0.0
        while now < ends[-1]:
            phase = int(np.searchsorted(ends, now, side="right"))
            block = int(min(_BLOCK, (ends[phase] - now) * 1.1 + 16.0))
            reached = now + np.cumsum(self.phases[phase].gaps.draw(rng, block))
            # The gap that leaves the phase is the last one by this phase's law.
            reached = reached[: int(np.searchsorted(reached, ends[phase])) + 1]
            now = float(reached[-1])
            inside = reached[reached < ends[-1]]
            at = np.searchsorted(ends, inside, side="right")
            times = np.maximum(starts[at] + (inside - begins[at]) / rates[at], last)
            if len(times):
                last = float(times[-1])
                yield times


def poisson(*, rate: float) -> ArrivalProcess:
    """Independent users."""
    return ArrivalProcess((Phase(math.inf, rate),))


def gamma(*, rate: float, cv: float) -> ArrivalProcess:
    """Gamma gaps."""
    return ArrivalProcess((Phase(math.inf, rate, GammaGaps(cv)),))


def weibull(*, rate: float, cv: float) -> ArrivalProcess:
    """Weibull gaps."""
    return ArrivalProcess((Phase(math.inf, rate, WeibullGaps(cv)),))


def constant(*, rate: float) -> ArrivalProcess:
    """Equal gaps."""
    return ArrivalProcess((Phase(math.inf, rate, ConstantGaps()),))


# Processes told by numbers, with the numbers' names; phases are told by `ArrivalProcess` itself.
ARRIVALS: Mapping[str, tuple[Callable[..., ArrivalProcess], tuple[str, ...]]] = {
    "poisson": (poisson, ("rate",)),
    "gamma": (gamma, ("rate", "cv")),
    "weibull": (weibull, ("rate", "cv")),
    "constant": (constant, ("rate",)),
}
