"""Which TTFT and TPOT is a bound held against? The mean, or a percentile over requests."""

from __future__ import annotations

from dataclasses import replace

from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.distributions import Statistic
from cluster.costmodel.estimate import EstimateTable, Serving
from cluster.costmodel.percentiles import latencies_of
from cluster.model.hardware import NodeGroup
from cluster.model.layout import LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.workload import Workload


def judged_by(
    statistic: Statistic,
    estimates: EstimateTable,
    *,
    model: ModelSpec,
    group: NodeGroup,
    table: LayoutTable,
    workload: Workload,
    coefficients: Coefficients | None,
    serving: Serving,
) -> EstimateTable:
    """`estimates` with TTFT and TPOT of `statistic`; the other columns stay means."""
    if statistic is Statistic.MEAN:
        return estimates
    found = latencies_of(
        model,
        group,
        table,
        workload,
        state=estimates.state,
        concurrency=estimates.concurrency,
        running=estimates.running,
        coefficients=coefficients,
        serving=serving,
    )
    return replace(estimates, ttft_s=found.ttft.of(statistic), tpot_s=found.tpot.of(statistic))
