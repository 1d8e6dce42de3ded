"""A question small enough to search in a test, and an evaluator to search it with."""

from __future__ import annotations

from functools import cache

import numpy as np

from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.workload import Slo, Workload
from rl_search.enumeration import Space, options_for
from rl_search.evaluator import CostModel, Judged
from rl_search.question import Priority, Question
from rl_search.space import ActionSpace


@cache
def question(
    model: str = "qwen3-30b-a3b",
    cluster: str = "2x8xH100",
    space: Space = Space.ANY,
    tpot_s: float | None = 0.05,
) -> Question:
    group = parse_cluster(cluster).groups[0]
    return Question(
        model=get_model(model),
        group=group,
        workload=Workload(isl=2000, osl=300),
        slo=Slo(tpot_s=tpot_s),
        options=options_for(group, space=space, max_devices=group.devices, max_dp=None),
        headroom=0.2,
        max_model_len=2300,
    )


@cache
def space_of(*args: object, **kwargs: object) -> ActionSpace:
    return ActionSpace.of(question(*args, **kwargs))  # type: ignore[arg-type]


def cost_model(*args: object, **kwargs: object) -> CostModel:
    return CostModel(space_of(*args, **kwargs), Priority.THROUGHPUT)


class Counting:
    """An evaluator whose value is a simple sum, and which counts what it is asked."""

    def __init__(self, space: ActionSpace) -> None:
        self.space = space
        self.batches: list[int] = []

    def judge(self, actions: np.ndarray) -> Judged:
        self.batches.append(len(actions))
        value = 1.0 + actions.sum(axis=1)
        shortfall = np.where(actions[:, 0] == 0, 0.5, 0.0)
        return Judged(value.astype(np.float64), shortfall, np.zeros(len(actions)))
