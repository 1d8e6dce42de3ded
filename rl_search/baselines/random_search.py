"""What does luck find? Strategies drawn head by head, uniformly from what the masks allow.

Invariant: ends when the budget is spent, all there is has been judged, or nothing new comes.
"""

from __future__ import annotations

import numpy as np

from rl_search.archive import Archive
from rl_search.baselines.moves import Patience

BATCH = 64
ROUNDS = 100  # batches without a new strategy: what is left is too rare to be met


def random_search(archive: Archive, seed: int) -> None:
    """Draws in batches. What was drawn before is answered from memory, so all calls differ."""
    rng, patience = np.random.default_rng(seed), Patience(archive, most=ROUNDS)
    while patience.lasts():
        archive.judge(archive.space.sample(rng, BATCH))
