"""What do the methods climb, and how do they change a strategy? Shared, so that none has it better.

Choices in order (degrees and limits) mostly move to a neighbour; dims, which have no order, move to
any other. Whatever was changed is repaired: a move never leaves the masks.

Invariants: heights rise with what is wanted, and what satisfies everything is above what does not;
a head of one value never moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl_search.archive import Archive
from rl_search.evaluator import Judged
from rl_search.space import ActionSpace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def heights(judged: Judged, *, best: float | None = None) -> Floats:
    """The value where all is satisfied, relative to `best` if there is one; else minus the miss."""
    return np.where(judged.ok, judged.value / (best or 1.0), -judged.shortfall)


@dataclass(frozen=True, eq=False)
class Moves:
    """Changes of strategies of one space. `far` of the moves of an ordered head go anywhere."""

    space: ActionSpace
    far: float

    @property
    def movable(self) -> Bools:
        """The heads that have another value, (heads,)."""
        return np.asarray(self.space.sizes) > 1

    def moved(self, rng: np.random.Generator, actions: Ints, heads: Bools) -> Ints:
        """`actions` with the `heads` of each changed, both (n, heads), and repaired."""
        sizes = np.asarray(self.space.sizes)
        unordered = np.asarray([bool(head.dims) for head in self.space.heads])
        elsewhere = 1 + np.floor(rng.random(actions.shape) * (sizes - 1)).astype(np.int64)
        step = np.where(rng.random(actions.shape) < 0.5, 1, -1)
        beyond = (actions + step < 0) | (actions + step >= sizes)
        beside = actions + np.where(beyond, -step, step)
        jumps = unordered | (rng.random(actions.shape) < self.far)
        values = np.where(jumps, (actions + elsewhere) % sizes, beside)
        return self.space.repaired(np.where(heads & self.movable, values, actions))


class Patience:
    """Rounds since a call was made: proposals known already cost none, and would never end."""

    def __init__(self, archive: Archive, *, most: int) -> None:
        self._archive = archive
        self._most = most
        self._calls = archive.calls
        self.rounds = 0

    def lasts(self) -> bool:
        """Asked once a round: False when all is judged, or `most` rounds in a row made no call."""
        self.rounds = self.rounds + 1 if self._archive.calls == self._calls else 0
        self._calls = self._archive.calls
        return self.rounds <= self._most and len(self._archive.memory) < self._archive.space.size
