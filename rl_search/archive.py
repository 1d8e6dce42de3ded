"""What has been judged so far, and how many calls did it take? The one place where calls count.

A call is one strategy given to the evaluator. Asking for it again is answered from memory and
costs nothing, whoever asks: evaluators are deterministic. Strategies that break a rule cost a call
like any other. Every search method works through an archive, so equal budgets are equal calls.

Invariants: calls <= budget; `best` satisfies everything; the curve rises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl_search.evaluator import Evaluator, Judged
from rl_search.space import ActionSpace

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Watch = Callable[["Archive"], None]


class BudgetSpent(Exception):  # noqa: N818 - no error: how every search ends
    """No calls are left."""


@dataclass(frozen=True)
class Found:
    """A strategy that satisfies everything, its value, and after how many calls it was found."""

    action: tuple[int, ...]
    value: float
    calls: int


class Archive:
    """Judges through `evaluator` until `budget` calls are spent, and keeps what came of them.

    `known` are answers of an earlier run of the same search: they count as calls when they are
    asked for, but cost nothing, so that an interrupted search takes the way it took before.
    `watch` is told after every batch of calls.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        budget: int,
        known: tuple[Ints, Judged] | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._evaluator = evaluator
        self._watch = watch
        self._rows: dict[bytes, int] = {}
        self._actions: list[Ints] = []
        self._judged = Judged.empty()
        self._remembered: dict[bytes, int] = {}
        self._answers = Judged.empty()
        if known is not None:
            self._remembered = {_key(action): row for row, action in enumerate(known[0])}
            self._answers = known[1]
        self.budget = budget
        self.calls = 0
        self.asked = 0
        self.curve: list[Found] = []

    @property
    def space(self) -> ActionSpace:
        """Which strategies there are."""
        return self._evaluator.space

    @property
    def left(self) -> int:
        """Calls that are left."""
        return self.budget - self.calls

    @property
    def best(self) -> Found | None:
        """The best that satisfies everything, None as long as nothing does."""
        return self.curve[-1] if self.curve else None

    @property
    def actions(self) -> Ints:
        """Everything judged, (calls, heads), in order."""
        return np.asarray(self._actions, dtype=np.int64).reshape(-1, len(self.space.heads))

    @property
    def judged(self) -> Judged:
        """What came of `actions`."""
        return self._judged

    def judge(self, actions: Ints) -> Judged:
        """What (n, heads) actions come to.

        Raises BudgetSpent where not all of them can be judged; those that can have been then.
        """
        judged, known = self.judge_some(actions)
        if not known.all():
            raise BudgetSpent
        return judged

    def judge_some(self, actions: Ints) -> tuple[Judged, Bools]:
        """As far as the budget goes: what is known of (n, heads) actions, and of which."""
        self.asked += len(actions)
        keys = [_key(action) for action in actions]
        new: dict[bytes, int] = {}
        for row, key in enumerate(keys):
            if key not in self._rows and key not in new and len(new) < self.left:
                new[key] = row
        if new:
            self.add(actions[list(new.values())], self._answer(list(new), actions, new))
        rows = np.asarray([self._rows.get(key, -1) for key in keys], dtype=np.int64)
        if not len(self._judged):
            nothing = np.zeros(len(actions))
            return Judged(nothing, nothing + 1.0, nothing), rows >= 0
        return self._judged.take(np.maximum(rows, 0)), rows >= 0

    def add(self, actions: Ints, judged: Judged) -> None:
        """Take in what an evaluator said of `actions`, each one a call."""
        for action in actions:
            self._rows[_key(action)] = len(self._actions)
            self._actions.append(np.asarray(action, dtype=np.int64))
        self._judged = self._judged.followed_by(judged)
        for index in np.flatnonzero(judged.ok).tolist():
            value = float(judged.value[index])
            if self.best is None or value > self.best.value:
                action = tuple(int(choice) for choice in actions[index])
                self.curve.append(Found(action, value, self.calls + index + 1))
        self.calls += len(actions)
        if self._watch is not None:
            self._watch(self)

    def charge(self, calls: int) -> None:
        """Calls that a method made without the archive."""
        self.calls += calls
        self.budget = max(self.budget, self.calls)

    def ranked(self, most: int) -> Ints:
        """Rows of the best judged, best first: by value where all is satisfied, then by misses."""
        judged = self._judged
        order = np.lexsort((-judged.value, np.where(judged.ok, 0.0, judged.shortfall)))
        return np.asarray(order[:most], dtype=np.int64)

    def _answer(self, keys: list[bytes], actions: Ints, rows: dict[bytes, int]) -> Judged:
        """Answers for new strategies in the order of `keys`, remembered ones for nothing."""
        unknown = [rows[key] for key in keys if key not in self._remembered]
        fresh = self._evaluator.judge(actions[unknown]) if unknown else Judged.empty()
        answers = self._answers.followed_by(fresh)
        taken, place = [], len(self._answers)
        for key in keys:
            if key in self._remembered:
                taken.append(self._remembered[key])
            else:
                taken.append(place)
                place += 1
        return answers.take(np.asarray(taken, dtype=np.int64))


def _key(action: Ints) -> bytes:
    return np.asarray(action, dtype=np.int16).tobytes()
