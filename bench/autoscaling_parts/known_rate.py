"""What would one need who knows the rate that arrivals are drawn with, but not what comes next?

ServeGen's rates hold for ten minutes and then jump. This rival is told each rate at the moment it
begins, exactly, and asks for a multiple of the replicas that it keeps busy; the least multiple that
keeps `KEEPS` within the SLO is searched, with the whole trace known. A controller has to find the
rate out from noisy arrivals, and its multiple in advance: where replicas take minutes to start,
what this one costs above the clairvoyant is the price of not knowing the future.
"""

from __future__ import annotations

import math

import numpy as np

from bench.autoscaling_parts.clairvoyant import KEEPS
from bench.autoscaling_parts.fluid_world import FluidWorld
from bench.autoscaling_parts.world import Floats, Run, Sizer
from cluster.sim.driver import PoolFacts

RATE_S = 600.0  # for which ServeGen's rates hold
_LEAST, _MOST = 1.0, 4.0
_RUNS = 7


class KnownRate(Sizer):
    """`busy`: replicas that each window's rate keeps busy. `multiple`: of them, asked for."""

    def __init__(self, busy: Floats, *, multiple: float) -> None:
        self._busy, self._multiple = busy, multiple

    def replicas(self, pool: PoolFacts, now_s: float) -> int:
        """See `Sizer`."""
        del pool
        window = min(int(now_s / RATE_S), len(self._busy) - 1)
        return math.ceil(self._multiple * float(self._busy[window]))


def busy_by_rate(world: FluidWorld) -> Floats:
    """Replicas that the mean of each window of `RATE_S` keeps busy."""
    tokens, width = world.seconds.tokens, round(RATE_S)
    starts = np.arange(0, len(tokens), width)
    lengths = np.diff(np.append(starts, len(tokens)))
    return np.asarray(np.add.reduceat(tokens, starts) / lengths / world.sustained.tokens_per_s)


def cheapest_known_rate(world: FluidWorld) -> tuple[float, Run]:
    """The least multiple found that keeps the SLO, and its run."""
    busy = busy_by_rate(world)
    low, high = _LEAST, _MOST
    best = high, world.run(KnownRate(busy, multiple=high))
    for _ in range(_RUNS):
        multiple = math.sqrt(low * high)
        run = world.run(KnownRate(busy, multiple=multiple))
        if run.attainment < KEEPS:
            low = multiple
        else:
            high, best = multiple, (multiple, run)
    return best
