"""How many sequences does a request find decoding, where requests come at random?

Arrivals at rate lam make the number b of decoding sequences a birth-death process with departure
rate mu(b) = b / ((OSL - 1) TPOT(b)), at most the rate X of a full batch B: pi(b) ~ prod lam/mu(i),
and beyond B a geometric tail lam/X. Its stationary law does not depend on the law of lengths
(processor sharing with state-dependent rate; Cohen 1979). But a prompt also halts decoding: with
share h of the time taken by prompts, an arrival leaves 1/(1 - h) more sequences than there would
be, so that noise, and with it the variance, is phi = (1/(1 - h)^2 + 1)/2 times as large (the
diffusion limit): pi^(1/phi). Poisson arrivals see time averages.

Shapes: (n,). Invariants: chances sum to 1; more arrivals never find fewer sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.service import SteadyState

Floats = NDArray[np.float64]
_AVERAGED = 0.736  # 2/e: variance of a mean over one relaxation time of the batch, over the batch's
_MOST_HALTED = 0.9


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """The stationary batch of a rank as requests meet it, (n,) each."""

    tpot_s: Floats
    drift: Floats  # variance of tpot_s over requests
    decoding: Floats  # the request included
    full: Floats  # chance to find no place
    place_s: Floats  # what is then waited for one, lengths and arrivals exponential
    idle: Floats  # chance to find nobody
    halted: Floats  # share of time that prompts take


def rising(states: list[SteadyState], row: int) -> Floats:
    """Decoding sequences of one row by load, never falling."""
    return np.maximum.accumulate(np.array([state.decoding[row] for state in states]))


def occupancy(states: list[SteadyState], tokens: Floats, rate: Floats, most: Floats) -> Occupancy:
    """The birth-death process of every row; `rate` < `most`, requests/s of a rank."""
    found = np.empty((7, len(rate)))
    for row in range(len(rate)):
        decoding = rising(states, row)
        batch = np.arange(1.0, max(np.floor(decoding[-1]), 1.0) + 1.0)
        batch = np.append(batch, batch[-1])  # with b others a request makes it b + 1, or waits
        tpot = np.interp(batch, decoding, [state.tpot_s[row] for state in states])
        shares = [state.tpot_parts["prefill_share"][row] / state.tpot_s[row] for state in states]
        departures = np.minimum(batch[:-1] / (tokens[row] * tpot[:-1]), most[row])
        departures[-1] = most[row]
        weights = np.concatenate(([0.0], np.cumsum(np.log(rate[row] / departures))))
        load, dispersion = rate[row] / most[row], 1.0
        # The share of time that prompts take depends on the batch, and the batch, a little, on it.
        alone = float(_law(weights, load, dispersion) @ batch)
        halted = min(float(np.interp(alone, decoding, shares)), _MOST_HALTED)
        dispersion = (1.0 / (1.0 - halted) ** 2 + 1.0) / 2.0
        chance = _law(weights, load, dispersion)
        mean = float(chance @ tpot)
        found[:, row] = (
            mean,
            float(chance @ (tpot - mean) ** 2) * _AVERAGED,
            float(chance @ batch),
            chance[-1],
            1.0 / (most[row] * (1.0 - load ** (1.0 / dispersion))),
            chance[0],
            halted,
        )
    names = ("tpot_s", "drift", "decoding", "full", "place_s", "idle", "halted")
    return Occupancy(**dict(zip(names, found, strict=True)))


def _law(weights: Floats, load: float, dispersion: float) -> Floats:
    """Chances of 0, 1, … sequences; the last one holds the geometric tail beyond it."""
    chance = np.exp((weights - weights.max()) / dispersion)
    chance[-1] /= 1.0 - load ** (1.0 / dispersion)
    return np.asarray(chance / chance.sum())
