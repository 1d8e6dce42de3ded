"""What do tree-structured Parzen estimators find? Optuna's TPE, with all heads in one density.

The sampler models where good strategies are and where others are, and proposes what is likely among
the first and not among the second. Proposals are repaired, and it is the repaired strategy that the
sampler is told of. One that has been judged before teaches nothing, and as a search closes in most
have been: these are moved by a head. The sampler learns from the best strategies so far and the
latest of the others: what was bad long ago says little, and a proposal goes through all it knows.

Degrees and limits are integers, whose neighbours are alike; dims are categories. That and the rest
of the settings were chosen on the two 64-device cases of `bench/search_cases.py`: categories or
integers for everything, proposals of a batch that do not know of each other, half as many told of,
or luck in place of what is known are all worse.

Invariants: nothing is told that the archive does not hold; ends when the budget is spent, or when
nothing new comes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rl_search.archive import Archive
from rl_search.baselines.moves import Moves, Patience, heights
from rl_search.space import ActionSpace

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

Ints = NDArray[np.int64]

DRAWN = 64  # strategies to begin with
BATCH = 16  # proposals that are judged at once
GOOD = 25  # strategies, of the
TOLD = 250  # that a sampler is told of: it takes the best tenth for good ones, at most 25
FAR = 0.2  # of the moves of degrees and limits go anywhere, the others to a neighbour
TRIES = 20  # moves away from what is known
ROUNDS = 10  # without a new strategy before it is over


def tpe(archive: Archive, seed: int) -> None:
    """Propose until the budget is spent, beginning with what is known and what luck draws."""
    with _quiet():
        rng = np.random.default_rng(seed)
        archive.judge(archive.space.sample(rng, DRAWN))
        searched = _Searched(archive)
        patience = Patience(archive, most=ROUNDS)
        while patience.lasts():
            proposals = archive.space.repaired(searched.proposals(rng))
            archive.judge(_new(archive, rng, proposals))


class _Searched:
    """The archive as Optuna sees it: a trial of every strategy, in its order."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._heads = _distributions(archive.space)
        self._trials: list[FrozenTrial] = []

    def proposals(self, rng: np.random.Generator) -> Ints:
        """A batch from a sampler that was told of the archive, (BATCH, heads), not repaired."""
        from optuna import create_study
        from optuna.samplers import TPESampler

        sampler = TPESampler(
            seed=int(rng.integers(2**31)),
            multivariate=True,
            constant_liar=True,  # proposals of a batch keep apart
            n_startup_trials=1,  # what it begins with was drawn under the masks
        )
        study = create_study(direction="maximize", sampler=sampler)
        study.add_trials([self._trial(row) for row in self._told().tolist()])
        actions = np.zeros((BATCH, len(self._archive.space.heads)), dtype=np.int64)
        for row in range(BATCH):
            asked = study.ask(self._heads)
            for index, head in enumerate(self._archive.space.heads):
                actions[row, index] = asked.params.get(head.name, 0)
        return actions

    def _told(self) -> Ints:
        """Rows of the archive: the best, and the latest of the others, in order."""
        best = self._archive.ranked(GOOD)
        others = np.setdiff1d(np.arange(len(self._archive.memory)), best)
        return np.concatenate([best, others[len(best) - TOLD :]])

    def _trial(self, row: int) -> FrozenTrial:
        """Made once: a strategy's worth does not change."""
        from optuna.trial import create_trial

        first = len(self._trials)
        known = heights(self._archive.judged)[first:].tolist()
        for action, height in zip(self._archive.actions[first:].tolist(), known, strict=True):
            choices = zip(self._archive.space.heads, action, strict=True)
            params = {head.name: value for head, value in choices if head.name in self._heads}
            self._trials.append(
                create_trial(params=params, distributions=self._heads, value=height)
            )
        return self._trials[row]


def _distributions(space: ActionSpace) -> dict[str, BaseDistribution]:
    """Of every head that has more than one value."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    return {
        head.name: CategoricalDistribution(tuple(range(size)))
        if head.dims
        else IntDistribution(0, size - 1)
        for head, size in zip(space.heads, space.sizes, strict=True)
        if size > 1
    }


def _new(archive: Archive, rng: np.random.Generator, proposals: Ints) -> Ints:
    """The proposals, those that are known or came twice moved by a head until they are new."""
    moves, proposals = Moves(archive.space, FAR), proposals.copy()
    for _ in range(TRIES):
        new = archive.memory.unknown(proposals, most=len(proposals))
        known = np.setdiff1d(np.arange(len(proposals)), new)
        if not len(known):
            break
        luck = rng.random((len(known), proposals.shape[1]))
        one = np.where(moves.movable, luck, np.inf).argsort(axis=1).argsort(axis=1) == 0
        proposals[known] = moves.moved(rng, proposals[known], one)
    return proposals


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Optuna's report of every trial, and its notice that some options may yet change."""
    from optuna import logging
    from optuna.exceptions import ExperimentalWarning

    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    finally:
        logging.set_verbosity(before)
