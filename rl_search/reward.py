"""What is a strategy worth to the policy? r = alpha raw + beta (raw - best so far).

`raw` is the objective in percent of the best so far, so that a reward means the same in every
question and the penalties of strategies that miss something, -10 to -100 by how far off they are,
are of its size. beta / alpha of 0.3 to 0.5 rewards a breakthrough without shaking the policy
(article A, 4.3). Of a strategy that satisfies everything, the share of the time that pipeline
stages wait is taken off. A strategy that was judged before tells nothing new, and is worth less.

Invariants: falls with the shortfall and rises with the value; finite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.errors import InputError
from rl_search.evaluator import Judged

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
PERCENT = 100.0


@dataclass(frozen=True, kw_only=True)
class Reward:
    """The weights. `least` and `most` are what a strategy that misses something loses.

    `bubble`: percent taken off for stages that always wait; `repeat`: for a strategy known before.
    """

    alpha: float = 1.0
    beta: float = 0.4
    least: float = 10.0
    most: float = 100.0
    bubble: float = 1.0
    repeat: float = 20.0

    def __post_init__(self) -> None:
        if not (self.alpha > 0.0 and min(self.beta, self.bubble, self.repeat) >= 0.0):
            raise InputError(
                f"reward weights alpha {self.alpha:g}, beta {self.beta:g}, bubble {self.bubble:g}, "
                f"repeat {self.repeat:g}: alpha must be more than 0, the others at least 0. "
                "Fix: beta / alpha of 0.3 to 0.5 is a good start."
            )
        if not 0.0 < self.least <= self.most:
            raise InputError(
                f"penalties from {self.least:g} to {self.most:g}: they must be more than 0 and in "
                "this order. Fix: leave them at 10 and 100."
            )

    def of(self, judged: Judged, *, best: float | None, repeated: Bools) -> Floats:
        """Rewards of n strategies, (n,), where `best` was the best value before them."""
        reference = best or float(judged.value[judged.ok].max(initial=0.0)) or 1.0
        raw = PERCENT * judged.value / reference
        good = self.alpha * raw + self.beta * (raw - PERCENT) - self.bubble * judged.bubble
        good = good - self.repeat * repeated
        off = np.minimum(judged.shortfall, 1.0)
        return np.where(judged.ok, good, -self.least - (self.most - self.least) * off)
