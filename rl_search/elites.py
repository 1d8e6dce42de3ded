"""Which strategies does the policy look at? For every sample of a round a history of T, best first.

Most samples see the best strategies of one choice of degrees (tp, dp, pp, ep), drawn from the
choices whose best is best; the others see the best of T different choices. So several hills are
climbed at once, each from its own best, and none is left because another was found first
(MAP-Elites, arXiv:1504.04909, with the degrees as niches). Histories that stand still keep the
policy where it is (article A, 5): half of them are then replaced by the best of any degrees that
were judged, so that a hill of which only a poor strategy is known gets its turn.

Invariants: at most T, all different; the same seed draws the same histories.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl_search.archive import Archive
from rl_search.space import DEGREES, ActionSpace

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

SIZE = 4
NICHES = 8  # choices of degrees that are climbed at once


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
        return cls._rows(archive, _best_of_each(archive)[:size], size)

    @classmethod
    def drawn(
        cls,
        archive: Archive,
        rng: np.random.Generator,
        samples: int,
        *,
        together: Elites,
        apart: float,
        anywhere: float = 0.0,
    ) -> tuple[Elites, ...]:
        """A history per sample: of one choice of degrees for a share `apart`, else `together`.

        Of those apart a share `anywhere` is of any degrees judged, the others of the best.
        """
        size = together.size
        rows = archive.ranked(len(archive.judged))
        degrees = archive.actions[rows][:, : len(DEGREES)]
        _, first, which = np.unique(degrees, axis=0, return_index=True, return_inverse=True)
        niches = np.argsort(first)  # best first
        best = niches[rng.integers(min(NICHES, len(niches)), size=samples)]
        some = niches[rng.integers(len(niches), size=samples)]
        picked = np.where(rng.random(samples) < anywhere, some, best)
        own = {
            int(niche): cls._rows(archive, rows[which.reshape(-1) == niche][:size], size)
            for niche in np.unique(picked)
        }
        alone = rng.random(samples) < apart
        return tuple(
            own[int(niche)] if is_alone else together
            for niche, is_alone in zip(picked, alone, strict=True)
        )

    @classmethod
    def none(cls, space: ActionSpace, *, size: int = SIZE) -> Elites:
        """Before anything was judged."""
        nothing = np.zeros(0)
        return cls(np.zeros((0, len(space.heads)), dtype=np.int64), nothing, nothing, size)

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


def _best_of_each(archive: Archive) -> Ints:
    """Rows of the best strategy of each degrees, best first."""
    rows = archive.ranked(len(archive.judged))
    degrees = archive.actions[rows][:, : len(DEGREES)]
    _, first = np.unique(degrees, axis=0, return_index=True)
    return np.asarray(rows[np.sort(first)], dtype=np.int64)


def features(space: ActionSpace) -> int:
    """Numbers per elite."""
    return sum(space.sizes) + 3
