"""Which strategies does the policy look at? The best T so far, best first.

A history that stands still keeps the policy where it is (article A, 5): half of it is then
replaced by others that were judged and satisfy everything.

Invariants: at most T, all different.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl_search.archive import Archive
from rl_search.space import ActionSpace

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

SIZE = 4


@dataclass(frozen=True, eq=False)
class Elites:
    """Up to `size` strategies, (k, heads), with their values and shortfalls, best first."""

    actions: Ints
    value: NDArray[np.float64]
    shortfall: NDArray[np.float64]
    size: int = SIZE

    @classmethod
    def of(cls, archive: Archive, *, size: int = SIZE) -> Elites:
        """The best of everything judged."""
        return cls._rows(archive, archive.ranked(size), size)

    @classmethod
    def shaken(cls, archive: Archive, rng: np.random.Generator, *, size: int = SIZE) -> Elites:
        """The better half of the best, and others of the better half of what satisfies all."""
        rows = archive.ranked(len(archive.judged))
        rows = rows[archive.judged.ok[rows]] if archive.judged.ok.any() else rows
        kept, pool = rows[: size - size // 2], rows[size : max(size, len(rows) // 2)]
        drawn = rng.choice(pool, size=min(size // 2, len(pool)), replace=False)
        return cls._rows(archive, np.concatenate([kept, np.sort(drawn)]).astype(np.int64), size)

    @classmethod
    def _rows(cls, archive: Archive, rows: Ints, size: int) -> Elites:
        judged = archive.judged.take(rows)
        return cls(archive.actions[rows], judged.value, judged.shortfall, size)

    def seen(self, space: ActionSpace, *, best: float | None) -> Floats:
        """What the policy sees, (size, features(space)): choices one-hot, value, miss, presence."""
        ends = np.cumsum([0, *space.sizes])
        made = np.zeros((self.size, features(space)), dtype=np.float32)
        for row, action in enumerate(self.actions):
            made[row, ends[:-1] + action] = 1.0
            made[row, ends[-1] :] = (
                self.value[row] / best if best else 0.0,
                min(float(self.shortfall[row]), 1.0),
                1.0,
            )
        return made


def features(space: ActionSpace) -> int:
    """Numbers per elite."""
    return sum(space.sizes) + 3
