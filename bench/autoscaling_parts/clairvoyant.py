"""How few replicas would do, had one known every arrival?

The cheapest schedule found that keeps the SLO for 99 % of what comes, under the same rules: a
replica costs from when it is asked for, and takes its cold start to be of use.

    minimise  sum_w n_w W + start_s sum_w max(0, n_w - n_(w-1)) + price sum_w missed_w(n_w)

over the replicas n_w of windows of length W. missed_w(n) is measured: the window alone, after a
lead-in, with n replicas. For one price on misses dynamic programming gives the optimum exactly;
the least price whose schedule, played as a whole, attains 99 % is found by bisection. Where
misses are spared is thus chosen by what they cost: short peaks go unserved first.

It is the best found and not a proof: a window sees one number of replicas, and windows are judged
apart; the whole run, whose figures are reported, is played like everyone's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bench.autoscaling_parts.world import Bench, Floats, Run, Sizer
from cluster.sim.driver import PoolFacts

KEEPS = 0.99
_LEAST, _MOST = 1e-4, 1e6  # replica seconds a miss may be worth
_GUESSES, _RUNS = 30, 6  # bisections on what the windows say, and on whole runs
_OVERLOAD = 1.4  # no replica carries more than this times what it sustains
_FLAT = 0.002


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Replicas that serve in each window."""

    window_s: float
    replicas: tuple[int, ...]

    def at(self, now_s: float) -> int:
        """How many serve at a time; the last window's afterwards."""
        return self.replicas[min(int(now_s / self.window_s), len(self.replicas) - 1)]


class Scheduled(Sizer):
    """Carries a schedule out: asks a cold start, and a tick, ahead."""

    def __init__(self, schedule: Schedule, *, start_s: float) -> None:
        self._schedule = schedule
        self._ahead_s = start_s + self.tick_s

    def replicas(self, pool: PoolFacts, now_s: float) -> int:
        """See `Sizer`."""
        del pool
        of = self._schedule
        first, last = int(now_s / of.window_s), int((now_s + self._ahead_s) / of.window_s)
        return max(of.at(window * of.window_s) for window in range(first, last + 1))


def clairvoyant(world: Bench) -> tuple[Schedule, Run]:
    """The cheapest schedule found, and its run. ValueError if none of `world.most` keeps it."""
    losses = misses(world)
    allowed = (1.0 - KEEPS) * float(world.arrived().sum())

    def priced(price: float) -> Schedule:
        return cheapest(
            losses,
            window_s=world.window_s,
            start_s=world.start_s,
            initial=world.initial,
            price=price,
        )

    low, high = _LEAST, _MOST
    for _ in range(_GUESSES):
        price = math.sqrt(low * high)
        replicas = np.array(priced(price).replicas)
        if losses[np.arange(len(replicas)), replicas].sum() <= allowed:
            high = price
        else:
            low = price
    # What the windows say is near: whole runs, with what one leaves to the next, decide.
    low, high = high / 8.0, high * 64.0
    best: tuple[Schedule, Run] | None = None
    for _ in range(_RUNS):
        price = math.sqrt(low * high)
        schedule = priced(price)
        run = world.run(Scheduled(schedule, start_s=world.start_s))
        if run.attainment < KEEPS:
            low = price
            continue
        high = price
        if best is None or run.gpu_hours <= best[1].gpu_hours:
            best = schedule, run
    if best is None:
        raise ValueError(f"{world.most} replicas do not keep the SLO for {KEEPS:.0%}.")
    return best


def misses(world: Bench) -> Floats:
    """[window, replicas]: what is missed. More replicas never miss more.

    Asked for 1 to 8 replicas and then for each an eighth more, linear between. A window is asked
    about until hardly more (`_FLAT` of its arrivals) is missed than with the most there may be,
    such as too long a prompt.
    """
    arrived = world.arrived()
    least = world.missed(world.most, range(len(arrived)))
    per_replica = _OVERLOAD * world.sustained.requests_per_s * world.window_s
    still = arrived > 0
    asked_for, columns = [0], [arrived]
    while asked_for[-1] < world.most:
        replicas = min(world.most, asked_for[-1] + max(1, asked_for[-1] // 8))
        column = columns[-1].copy()
        asked = np.flatnonzero(still & (arrived <= replicas * per_replica))
        if len(asked):
            found = np.minimum(world.missed(replicas, asked.tolist()), column[asked])
            column[asked] = found
            still[asked] = found > least[asked] + _FLAT * arrived[asked]
        asked_for.append(replicas)
        columns.append(column)
    table = np.stack(columns, axis=1)
    numbers = np.arange(world.most + 1)
    return np.stack([np.interp(numbers, asked_for, row) for row in table])


def cheapest(
    losses: Floats, *, window_s: float, start_s: float, initial: int, price: float
) -> Schedule:
    """The exact optimum of the formula above for one price, in replica seconds per miss."""
    windows, sizes = losses.shape
    numbers = np.arange(sizes)
    # [before, after]: what going from one number to another costs.
    change = start_s * np.maximum(0, numbers[None, :] - numbers[:, None])
    came_from = np.zeros((windows, sizes), dtype=int)
    cost = change[initial]
    for window in range(windows):
        if window:
            total = cost[:, None] + change
            came_from[window] = total.argmin(axis=0)
            cost = total.min(axis=0)
        cost = cost + numbers * window_s + price * losses[window]
        cost[0] = math.inf  # nobody is there to answer the next one
    replicas = [int(cost.argmin())]
    for window in range(windows - 1, 0, -1):
        replicas.append(int(came_from[window, replicas[-1]]))
    return Schedule(window_s=window_s, replicas=tuple(reversed(replicas)))
