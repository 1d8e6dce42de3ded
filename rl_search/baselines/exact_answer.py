"""What does the exact search answer? The best of all layouts, each of which counts as a call.

It looks at everything whatever the budget, and needs the cost model: what a simulator says cannot
be told for all layouts at once.

Invariant: the archive's best is the pick of `exact.evaluate`, found with the last call.
"""

from __future__ import annotations

import numpy as np

from cluster.errors import InputError
from rl_search.archive import Archive
from rl_search.evaluator import CostModel
from rl_search.exact import evaluate, ranked


def exact_answer(archive: Archive, _: int) -> None:
    """Judge the one answer, after as many calls as there are layouts to consider."""
    evaluator = archive.evaluator
    if not isinstance(evaluator, CostModel):
        raise InputError(
            f"the exact search needs the cost model, and strategies are judged by a "
            f"{type(evaluator).__name__}, one at a time. Fix: search with another method, or judge "
            "by the cost model."
        )
    evaluated = evaluate(archive.space.question)
    picked = ranked(evaluated, evaluator.priority, top=1)
    # All but the answer, which the archive counts when it is judged.
    archive.charge(evaluated.considered - len(picked))
    archive.budget = max(archive.budget, archive.calls + len(picked))
    archive.judge(archive.space.encode(evaluated.table.take(np.asarray(picked, dtype=np.int64))))
