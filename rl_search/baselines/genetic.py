"""What does a genetic algorithm find? DEAP's operators, (mu + lambda), every child a new strategy.

A generation is bred from parents that won a tournament: pairs exchange each head with probability
one half, then every head changes with a small one, and the child is repaired. Children that have
been judged before teach nothing and are bred again. Of parents and children the best stay, so the
best is never lost; as no two are the same, the population does not collapse either.

The settings were chosen on the two 64-device cases of `bench/search_cases.py`: tournaments of two,
fewer crossings, and rarer or more frequent changes miss the best more often or find it later.

Invariant: ends when the budget is spent, or when neither breeding nor luck makes a new strategy.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_search.archive import Archive
from rl_search.baselines.moves import Moves, heights
from rl_search.evaluator import Judged

Ints = NDArray[np.int64]

PARENTS = 64
CHILDREN = 32  # a generation: one batch of the evaluator
TOURNAMENT = 3
CROSSED = 0.9  # of the pairs
CHANGED = 1.5  # heads of a child, on average
FAR = 0.3  # of the changes of degrees and limits go anywhere, the others to a neighbour
TRIES = 50  # generations bred for one that is new


def genetic(archive: Archive, seed: int) -> None:
    """Breed until the budget is spent, beginning with what is known and what luck draws."""
    breeder = _Breeder(archive, seed)
    archive.judge(breeder.drawn(PARENTS))
    rows = archive.ranked(PARENTS)
    population = breeder.individuals(archive.actions[rows], archive.judged.take(rows))
    while len(children := breeder.children(population)):
        born = breeder.individuals(children, archive.judge(children))
        population = breeder.best(population + born)


class _Individual(list[int]):
    """A strategy as DEAP wants it: a sequence with a fitness."""

    fitness: Any


class _Breeder:
    """DEAP's toolbox for strategies of one space."""

    def __init__(self, archive: Archive, seed: int) -> None:
        from deap import algorithms, base, tools

        self._archive = archive
        self._rng = np.random.default_rng(seed)
        self._moves = Moves(archive.space, FAR)
        self._luck = _Luck(seed)
        # Not `deap.creator`, which keeps the classes it makes in a module that all share.
        self._fitness = type("Fitness", (base.Fitness,), {"weights": (1.0,)})
        self._toolbox = base.Toolbox()
        self._toolbox.register("select", tools.selTournament, tournsize=TOURNAMENT)
        self._toolbox.register("mate", tools.cxUniform, indpb=0.5)
        self._toolbox.register("mutate", self._mutate)
        self._toolbox.register("clone", self._clone)
        self._toolbox.register("vary", algorithms.varAnd, cxpb=CROSSED, mutpb=1.0)
        self._toolbox.register("best", tools.selBest)

    def individuals(self, actions: Ints, judged: Judged) -> list[_Individual]:
        """Strategies with their fitness."""
        made = [_Individual(action) for action in actions.tolist()]
        for individual, height in zip(made, heights(judged).tolist(), strict=True):
            individual.fitness = self._fitness((height,))
        return made

    def children(self, population: list[_Individual]) -> Ints:
        """A generation of new strategies; what luck draws where breeding makes none."""
        born = np.zeros((0, len(self._archive.space.heads)), dtype=np.int64)
        for _ in range(TRIES):
            with self._luck:
                parents = self._toolbox.select(population, CHILDREN)
                varied = self._toolbox.vary(parents, self._toolbox)
            children = self._archive.space.repaired(np.asarray(varied, dtype=np.int64))
            born = self._new(np.concatenate([born, children]), most=CHILDREN)
            if len(born) == CHILDREN:
                break
        return born if len(born) else self.drawn(CHILDREN)

    def drawn(self, most: int) -> Ints:
        """Up to `most` new strategies by luck."""
        return self._new(self._archive.space.sample(self._rng, most * TRIES), most=most)

    def best(self, population: list[_Individual]) -> list[_Individual]:
        """Those that live on."""
        found: list[_Individual] = self._toolbox.best(population, PARENTS)
        return found

    def _new(self, actions: Ints, *, most: int) -> Ints:
        return actions[self._archive.memory.unknown(actions, most=most)]

    def _mutate(self, individual: _Individual) -> tuple[_Individual]:
        actions = np.asarray([individual], dtype=np.int64)
        heads = self._rng.random(actions.shape) * self._moves.movable.sum() < CHANGED
        individual[:] = self._moves.moved(self._rng, actions, heads)[0].tolist()
        return (individual,)

    def _clone(self, individual: _Individual) -> _Individual:
        made = _Individual(individual)
        made.fitness = self._fitness()
        return made


class _Luck:
    """DEAP draws from the global `random`: within this it is one of our own, then put back.

    The evaluator, and whoever watches, run outside of it: the same seed breeds the same children
    whatever they draw.
    """

    def __init__(self, seed: int) -> None:
        self._own = random.Random(seed).getstate()

    def __enter__(self) -> None:
        self._others = random.getstate()
        random.setstate(self._own)

    def __exit__(self, *_: object) -> None:
        self._own = random.getstate()
        random.setstate(self._others)
