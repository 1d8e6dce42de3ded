"""What does simulated annealing find? Walkers that go uphill, and downhill while it is still hot.

A step changes one head of a strategy, sometimes two. A step down by d, in shares of the best value
so far, is taken with probability exp(-d / T); T falls geometrically over the budget. Eight walkers
step at once, because a batch of eight takes the evaluator hardly longer than one. A walker that
has stood still restarts from one of the best strategies so far, which also brings the walkers
together when it gets cold; one that finds nothing new even so restarts anywhere.

The settings were chosen on the two 64-device cases of `bench/search_cases.py`: twice as many
walkers have too few steps each, and what ends at T = 0.02 has not settled.

Invariant: ends when the budget is spent, or when nothing new comes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl_search.archive import Archive
from rl_search.baselines.moves import Moves, Patience, heights
from rl_search.evaluator import Judged

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

DRAWN = 64  # strategies of which the best are where the walkers start
WALKERS = 8
HOT, COLD = 0.1, 0.003  # T at the start and at the end of the budget, in shares of the best value
PAIRS = 0.3  # of the steps change two heads
FAR = 0.2  # of the changes of degrees and limits go anywhere, the others to a neighbour
DIMS = 0.5  # how often the dim of an operator is changed for one change of a degree or limit
STILL = 15  # steps without a move before a walker restarts
PLACES = 4  # of the best strategies are restarted from
DRY = 20  # rounds without a new strategy before restarts are anywhere
ROUNDS = 200  # rounds without a new strategy before it is over


@dataclass(eq=False)
class _Walkers:
    """Where they stand, (k, heads), what that is worth, and for how many steps they have."""

    actions: Ints
    judged: Judged
    still: Ints

    def put(self, rows: Bools, actions: Ints, judged: Judged) -> None:
        """Move some to where others are, row by row."""
        self.actions = np.where(rows[:, None], actions, self.actions)
        both = self.judged.followed_by(judged)
        self.judged = both.take(np.arange(len(rows)) + np.where(rows, len(rows), 0))


def anneal(archive: Archive, seed: int) -> None:
    """Anneal until the budget is spent."""
    rng, moves = np.random.default_rng(seed), Moves(archive.space, FAR)
    patience = Patience(archive, most=ROUNDS)
    walkers = _start(archive, rng)
    while patience.lasts():
        steps = moves.moved(rng, walkers.actions, _heads(rng, moves))
        _step(archive, rng, walkers, steps)
        _restart(archive, rng, walkers, anywhere=patience.rounds > DRY)


def temperature(spent: float) -> float:
    """T once a share `spent` of the budget is."""
    return float(HOT * (COLD / HOT) ** spent)


def _start(archive: Archive, rng: np.random.Generator) -> _Walkers:
    """At the best of what is known, some of it drawn for this."""
    archive.judge(archive.space.sample(rng, DRAWN))
    rows = np.resize(archive.ranked(WALKERS), WALKERS)  # the same ones again where there are few
    judged = archive.judged.take(rows)
    return _Walkers(archive.actions[rows], judged, np.zeros(WALKERS, dtype=np.int64))


def _heads(rng: np.random.Generator, moves: Moves) -> Bools:
    """Which heads each walker changes, (k, heads): one or two, drawn by weight without repeat."""
    weights = np.asarray([DIMS if head.dims else 1.0 for head in moves.space.heads])
    # The least of exponential times falls to each in proportion to its rate.
    times = rng.exponential(size=(WALKERS, len(weights))) / weights
    places = np.where(moves.movable, times, np.inf).argsort(axis=1).argsort(axis=1)
    return np.asarray(places < np.where(rng.random(WALKERS) < PAIRS, 2, 1)[:, None])


def _step(archive: Archive, rng: np.random.Generator, walkers: _Walkers, steps: Ints) -> None:
    judged = archive.judge(steps)
    best = archive.best.value if archive.best else None
    gain = heights(judged, best=best) - heights(walkers.judged, best=best)
    heat = temperature(archive.calls / archive.budget)
    taken = rng.random(WALKERS) < np.exp(np.minimum(gain / heat, 0.0))
    taken &= (steps != walkers.actions).any(axis=1)
    walkers.put(taken, steps, judged)
    walkers.still = np.where(taken, 0, walkers.still + 1)


def _restart(
    archive: Archive, rng: np.random.Generator, walkers: _Walkers, *, anywhere: bool
) -> None:
    stuck = walkers.still >= STILL
    if not stuck.any():
        return
    rows = rng.choice(archive.ranked(PLACES), size=WALKERS)
    actions = archive.space.sample(rng, WALKERS) if anywhere else archive.actions[rows]
    walkers.put(stuck, actions, archive.judge(actions))
    walkers.still = np.where(stuck, 0, walkers.still)
