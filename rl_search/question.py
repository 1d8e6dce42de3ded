"""What is asked of a search, and what does it maximise?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.distributions import Statistic
from cluster.costmodel.estimate import PLAIN, EstimateTable, Serving
from cluster.model.hardware import NodeGroup
from cluster.model.model_spec import ModelSpec
from cluster.model.workload import Slo, Workload
from rl_search.enumeration import SpaceOptions
from rl_search.sharded_estimate import Setting

Floats = NDArray[np.float64]


class Priority(StrEnum):
    """What a pick maximises among the layouts that satisfy everything."""

    THROUGHPUT = "throughput"  # tokens/s/device
    INTERACTIVE = "interactive"  # tokens/s/user
    BALANCED = "balanced"  # their product: a percent of one is worth a percent of the other


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of the search, for one group of equal nodes."""

    model: ModelSpec
    group: NodeGroup
    workload: Workload
    slo: Slo
    options: SpaceOptions
    headroom: float
    max_model_len: int
    cross_domain_tp: bool = False
    coefficients: Coefficients | None = None  # None: the shipped calibration
    serving: Serving = PLAIN
    statistic: Statistic = Statistic.MEAN  # of TTFT and TPOT, that the bounds are for

    def setting(self) -> Setting:
        """What rows are estimated for."""
        return Setting.of(
            self.model,
            self.group,
            self.workload,
            coefficients=self.coefficients,
            serving=self.serving,
        )


def score(estimates: EstimateTable, priority: Priority) -> Floats:
    """What `priority` maximises, shape (n,)."""
    if priority is Priority.THROUGHPUT:
        return estimates.tokens_per_s_per_device
    if priority is Priority.INTERACTIVE:
        return estimates.tokens_per_s_per_user
    return estimates.tokens_per_s_per_device * estimates.tokens_per_s_per_user
