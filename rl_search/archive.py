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


class Memory:
    """Strategies and what came of them, each once, in order."""

    def __init__(self, space: ActionSpace) -> None:
        self.space = space
        self._rows: dict[bytes, int] = {}
        self._actions: list[Ints] = []
        self._judged: list[Judged] = []

    def __len__(self) -> int:
        return len(self._actions)

    @property
    def actions(self) -> Ints:
        """Everything judged, (k, heads)."""
        return np.asarray(self._actions, dtype=np.int64).reshape(-1, len(self.space.heads))

    @property
    def judged(self) -> Judged:
        """What came of `actions`."""
        if len(self._judged) != 1:
            self._judged = [Judged.joined(self._judged)]
        return self._judged[0]

    def add(self, actions: Ints, judged: Judged) -> None:
        """Take in strategies that are not known yet; known ones are left as they are."""
        new = []
        for row, action in enumerate(actions):
            if self._rows.setdefault(_key(action), len(self._actions)) == len(self._actions):
                self._actions.append(np.array(action, dtype=np.int64))
                new.append(row)
        if new:
            self._judged.append(judged.take(np.asarray(new, dtype=np.int64)))

    def find(self, actions: Ints) -> Ints:
        """Where each strategy is, -1 where it is not known, (n,)."""
        return np.asarray([self._rows.get(_key(a), -1) for a in actions], dtype=np.int64)

    def recall(self, actions: Ints) -> tuple[Judged, Bools]:
        """What is known of (n, heads) actions, and of which anything is."""
        rows = self.find(actions)
        judged = self.judged.followed_by(Judged.nothing(1))  # row -1: what is not known
        return judged.take(rows), rows >= 0

    def unknown(self, actions: Ints, *, most: int) -> Ints:
        """Rows of the first `most` different strategies that are not known."""
        found: dict[bytes, int] = {}
        for row, action in enumerate(actions):
            key = _key(action)
            if key not in self._rows and key not in found and len(found) < most:
                found[key] = row
        return np.asarray(list(found.values()), dtype=np.int64)


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
        known: Memory | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.evaluator = evaluator
        self._watch = watch
        self._known = known or Memory(evaluator.space)
        self.memory = Memory(evaluator.space)
        self.budget = budget
        self.calls = 0
        self.charged = 0
        self.asked = 0
        self.curve: list[Found] = []

    @property
    def space(self) -> ActionSpace:
        """Which strategies there are."""
        return self.evaluator.space

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
        """Everything judged, (k, heads), in order."""
        return self.memory.actions

    @property
    def judged(self) -> Judged:
        """What came of `actions`."""
        return self.memory.judged

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
        new = self.memory.unknown(actions, most=self.left)
        if len(new):
            self.add(actions[new], self._answers(actions[new]), asked=0)
        self.asked += len(actions)
        return self.memory.recall(actions)

    def add(self, actions: Ints, judged: Judged, *, asked: int) -> None:
        """Take in what an evaluator said of `actions`, each one a call, of `asked` proposals."""
        self.memory.add(actions, judged)
        self.asked += asked
        for index in np.flatnonzero(judged.ok).tolist():
            value = float(judged.value[index])
            if self.best is None or value > self.best.value:
                action = tuple(int(choice) for choice in actions[index])
                self.curve.append(Found(action, value, self.calls + index + 1))
        self.calls += len(actions)
        if self._watch is not None:
            self._watch(self)

    def charge(self, calls: int) -> None:
        """Calls that a method made without the archive, whatever the budget."""
        self.calls += calls
        self.charged += calls
        self.budget = max(self.budget, self.calls)

    def ranked(self, most: int) -> Ints:
        """Rows of the best judged, best first: by value where all is satisfied, then by misses."""
        judged = self.judged
        order = np.lexsort((-judged.value, np.where(judged.ok, 0.0, judged.shortfall)))
        return np.asarray(order[:most], dtype=np.int64)

    def _answers(self, actions: Ints) -> Judged:
        """The evaluator's answers to new strategies, remembered ones for nothing."""
        unknown = self._known.unknown(actions, most=len(actions))
        if len(unknown):
            self._known.add(actions[unknown], self.evaluator.judge(actions[unknown]))
        return self._known.recall(actions)[0]


def _key(action: Ints) -> bytes:
    return np.asarray(action, dtype=np.int16).tobytes()
