"""How do latencies scatter among requests? Percentiles of TTFT, TPOT and ITL about their means.

TTFT is a sum of independent waits: what is fixed (host work, own prefill); a uniform wait for the
running step and for a slot; for a share `burst` of requests a place in a burst, uniform in
[0, burst_s]; and two queues in which a request waits with probability q, else not at all: behind
prompts (M/D/1-like, exponential where one waits: the heavy-traffic limit of Kingman 1962), and
behind a backlog of k requests, a gamma of shape k (k departures in a row). Gamma quantiles are
Wilson and Hilferty's (1931). The sum is evaluated at the 1021 points of a rank-1 lattice
(generator 76, L'Ecuyer and Lemieux 2000): each wait rises with its quantile, the points are the
same for all rows, so percentiles are monotone in every wait.

ITL, between two deliveries of tokens, is a step without prompt tokens or, with probability p, one
with; where several prompts fit into a step, their number is Poisson of mean p instead. TPOT of a
request is the mean over n = (OSL - 1)/accepted such steps: normal with variance
p (1 - p) c extra^2 / n by the central limit theorem (prompts of c chunks delay c steps in a row; p
extra^2 / n for the Poisson), plus the skewness term (z^2 - 1)/6 of Cornish and Fisher (1938),
bounded by all steps alike, which is what matters where outputs are short. Speculation adds the
variance of a renewal count, tpot^2 var(kept) / (kept (OSL - 1)).

Requests are of the mean length: a spread of prompt lengths comes on top.
Shapes: (n,). Invariants: p50 <= p90 <= p99; means are the state's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.service import Demand, SteadyState

Floats = NDArray[np.float64]
_POINTS, _GENERATOR, _WAITS = 1021, 76, 7
_BLOCK = 2048  # rows whose points are held in memory at once
_BISECTIONS = 30


class Statistic(StrEnum):
    """Which figure of a latency a bound is meant for."""

    MEAN = "mean"
    P50 = "p50"
    P90 = "p90"
    P99 = "p99"


LEVELS = {Statistic.P50: 0.5, Statistic.P90: 0.9, Statistic.P99: 0.99}


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """Mean and percentiles over requests, seconds, (n,) each."""

    mean: Floats
    p50: Floats
    p90: Floats
    p99: Floats

    def of(self, statistic: Statistic) -> Floats:
        """The named figure, (n,)."""
        found: Floats = getattr(self, statistic.value)
        return found


@dataclass(frozen=True, kw_only=True)
class Latencies:
    """What users see. `itl` is the time between two deliveries: a step, whatever it accepted."""

    ttft: Quantiles
    tpot: Quantiles
    itl: Quantiles


@dataclass(frozen=True, kw_only=True)
class Queue:
    """A wait of mean `mean_s` that happens with probability `share`, a gamma of shape `stages`."""

    mean_s: Floats
    share: Floats
    stages: Floats


@dataclass(frozen=True, kw_only=True)
class FirstToken:
    """The waits that make a TTFT, (n,) each. `step_s` and `slot_s` are means of uniform ones."""

    fixed_s: Floats
    step_s: Floats
    slot_s: Floats
    burst: Floats
    burst_s: Floats
    prompts: Queue
    backlog: Queue

    @property
    def mean_s(self) -> Floats:
        """The mean TTFT, (n,)."""
        burst = self.burst * self.burst_s / 2.0
        queues = self.prompts.mean_s + self.backlog.mean_s
        return self.fixed_s + self.step_s + self.slot_s + burst + queues


def latencies(state: SteadyState, demand: Demand, *, burst: Floats) -> Latencies:
    """Percentiles of a closed loop; `burst` is `burst_share` of the engine."""
    return Latencies(
        ttft=ttft_quantiles(first_token(state, burst=burst)),
        tpot=tpot_quantiles(state, demand),
        itl=itl_quantiles(state, demand),
    )


def first_token(state: SteadyState, *, burst: Floats) -> FirstToken:
    """The waits of a closed loop. Its queue holds the burst, the prompts and the backlog."""
    parts = state.ttft_parts
    rest = np.maximum(parts["queue"] - burst * state.burst_s / 2.0, 0.0)
    # At most an M/D/1 queue of whole prompts is random; the rest has others ahead of it, always.
    random = np.minimum(rest, state.prefill_s * state.busy / (2.0 * (1.0 - state.busy)))
    backlog = rest - random
    ahead = backlog * state.requests_per_s
    waits = 1.0 - np.exp(-ahead)
    return FirstToken(
        fixed_s=parts["host"] + parts["prefill"],
        step_s=parts["step_wait"],
        slot_s=parts["slot_wait"],
        burst=burst,
        # A queue cut short (by Little's law) cuts the burst as well.
        burst_s=np.minimum(state.burst_s, 2.0 * parts["queue"] / np.maximum(burst, 1e-12)),
        prompts=Queue(mean_s=random, share=state.busy, stages=np.ones_like(random)),
        backlog=Queue(
            mean_s=backlog, share=waits, stages=np.maximum(ahead / np.maximum(waits, 1e-12), 1.0)
        ),
    )


def ttft_quantiles(waits: FirstToken) -> Quantiles:
    """Percentiles of the sum of the waits."""
    found = np.empty((len(waits.fixed_s), len(LEVELS)))
    ranks = [int(np.ceil(level * _POINTS)) - 1 for level in LEVELS.values()]
    for start in range(0, len(found), _BLOCK):
        rows = slice(start, start + _BLOCK)
        points = _points(waits, rows)
        points.partition(ranks, axis=1)
        found[rows] = points[:, ranks]
    return Quantiles(mean=waits.mean_s, p50=found[:, 0], p90=found[:, 1], p99=found[:, 2])


def tpot_quantiles(
    state: SteadyState,
    demand: Demand,
    *,
    swell: Floats | float = 1.0,
    drift: Floats | float = 0.0,
) -> Quantiles:
    """Percentiles of a request's mean time per token.

    Where arrivals do not wait for the batch, prompts add more variance, by the factor `swell`, and
    what all steps of a request have in common (the batch it meets) adds `drift`, seconds squared.
    """
    made, mean = _steps(state, demand), state.tpot_s
    steps = np.maximum(demand.tokens / demand.accepted, 1.0)
    in_a_row = np.clip(made.in_a_row, 1.0, steps) / steps
    mixed = made.extra**2 * made.variance * in_a_row * swell
    kept = (mean**2) * kept_variance(demand) / (demand.accepted * demand.tokens)
    variance = mixed + kept + drift
    # Third cumulants add; those of drafts and drift are taken as nil.
    skew = made.extra**3 * made.third * in_a_row**2 / np.maximum(variance, 1e-30) ** 1.5
    least = made.quick * demand.accepted / demand.queries
    most = np.where(kept > 0.0, np.inf, made.quick + made.extra * made.most)
    found: list[Floats] = []
    for level in LEVELS.values():
        z = NormalDist().inv_cdf(level)
        value = mean + np.sqrt(variance) * (z + (z * z - 1.0) / 6.0 * skew)
        value = np.clip(value, least, np.maximum(most, least))
        found.append(np.maximum(value, found[-1]) if found else value)
    return Quantiles(mean=mean, p50=found[0], p90=found[1], p99=found[2])


def itl_quantiles(state: SteadyState, demand: Demand) -> Quantiles:
    """Percentiles of the time between deliveries: a step, with the prompts it carries."""
    made = _steps(state, demand)
    found = {}
    for statistic, level in LEVELS.items():
        several = np.minimum(_poisson(made.share, level), made.most)
        count = np.where(made.several, several, 1.0 - made.share < level)
        found[statistic.value] = (made.quick + made.extra * count) * demand.accepted
    return Quantiles(mean=state.tpot_s * demand.accepted, **found)


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """Steps as a request meets them, seconds per output token, (n,) each.

    A step takes `quick`, and `extra` for each prompt in it, of which there are `share` on average
    and at most `most`; `variance` and `third` are cumulants of their number in a step.
    """

    quick: Floats
    extra: Floats
    share: Floats
    several: NDArray[np.bool_]
    most: Floats
    variance: Floats
    third: Floats
    in_a_row: Floats


def _steps(state: SteadyState, demand: Demand) -> _Steps:
    parts = state.tpot_parts
    delays = parts["prefill_share"] + parts["stragglers"]
    extra = np.maximum(state.mixed_s - state.decode_s, 0.0)
    share = np.clip(delays / np.maximum(extra, 1e-15), 0.0, 1.0)
    room = np.maximum(demand.chunk - state.decoding, 1.0)
    several = room >= 2.0 * demand.fresh
    # Where every step has prompts, the delay is that of all the prompts that come in a step.
    arriving = state.requests_per_s * state.tpot_s * demand.accepted
    count = np.where(several & (share > 0.99), np.maximum(arriving, share), share)
    return _Steps(
        quick=state.tpot_s - delays,
        extra=delays / np.maximum(count, 1e-12),
        share=count,
        several=several,
        most=np.where(several, np.maximum(np.floor(room / demand.fresh), count), 1.0),
        variance=np.where(several, count, share * (1.0 - share)),
        third=np.where(several, count, share * (1.0 - share) * (1.0 - 2.0 * share)),
        in_a_row=np.ceil(demand.fresh / room),
    )


def _poisson(mean: Floats, level: float) -> Floats:
    """The smallest count that at least `level` of a Poisson law does not exceed."""
    some = np.maximum(mean, -np.log(level) * (1.0 + 1e-9))  # below that, the count is 0
    from scipy.special import pdtrik  # a quarter of a second that most commands need not wait

    return np.where(mean > -np.log(level), np.ceil(pdtrik(level, some)), 0.0)


def kept_variance(demand: Demand) -> Floats:
    """Variance of the tokens a step keeps: of j drafts all are kept with probability a^j."""
    drafts = np.rint(demand.queries - 1.0)
    deepest = int(drafts.max(initial=0.0))
    if deepest == 0:
        return np.zeros_like(drafts)
    powers = np.arange(deepest + 1)[:, None]
    used = powers <= drafts
    low, high = np.zeros_like(drafts), np.ones_like(drafts)
    for _ in range(_BISECTIONS):  # the acceptance behind the mean, sum of a^j
        middle = (low + high) / 2.0
        less = (used * middle**powers).sum(axis=0) < demand.accepted
        low, high = np.where(less, middle, low), np.where(less, high, middle)
    square = (used * (2.0 * powers + 1.0) * low**powers).sum(axis=0)
    return np.asarray(np.maximum(square - demand.accepted**2, 0.0))


@cache
def _lattice() -> tuple[Floats, Floats]:
    """Coordinates in (0, 1), (waits, points), and their normal quantiles."""
    factors = [pow(_GENERATOR, power, _POINTS) for power in range(_WAITS)]
    index = np.arange(_POINTS)
    uniform = (np.outer(factors, index) % _POINTS + 0.5) / _POINTS
    table = np.array([NormalDist().inv_cdf((rank + 0.5) / _POINTS) for rank in range(_POINTS)])
    normal: Floats = table[np.rint(uniform * _POINTS - 0.5).astype(np.int64)]
    return uniform, normal


def _points(waits: FirstToken, rows: slice) -> Floats:
    """The sum of the waits of some rows at every point of the lattice, (rows, points)."""
    uniform, normal = _lattice()

    def column(values: Floats) -> Floats:
        return values[rows, None]

    total: Floats = column(waits.fixed_s) + 2.0 * column(waits.step_s) * uniform[0]
    total = total + 2.0 * column(waits.slot_s) * uniform[1]
    share = np.maximum(column(waits.burst), 1e-12)
    total += column(waits.burst_s) * np.maximum((uniform[2] - 1.0 + share) / share, 0.0)
    for queue, coin, level in ((waits.prompts, 3, 4), (waits.backlog, 5, 6)):
        stages = column(queue.stages)
        root = 1.0 - 1.0 / (9.0 * stages) + normal[level] / (3.0 * np.sqrt(stages))
        waited = column(queue.mean_s / np.maximum(queue.share, 1e-12)) * np.maximum(root, 0.0) ** 3
        total += np.where(uniform[coin] > 1.0 - column(queue.share), waited, 0.0)
    return total
