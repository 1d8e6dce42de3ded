"""Which TTFT and TPOT is a bound held against? The mean, or a percentile over requests."""

from __future__ import annotations

from dataclasses import replace

from cluster.costmodel.distributions import Statistic
from cluster.costmodel.estimate import EstimateTable
from cluster.costmodel.percentiles import latencies_of
from cluster.model.layout import LayoutTable
from rl_search.question import Question


def judged_by(question: Question, table: LayoutTable, estimates: EstimateTable) -> EstimateTable:
    """`estimates` with TTFT and TPOT (s) of the question's statistic; other columns stay means."""
    statistic = question.statistic
    if statistic is Statistic.MEAN:
        return estimates
    found = latencies_of(
        question.model,
        question.group,
        table,
        question.workload,
        state=estimates.state,
        concurrency=estimates.concurrency,
        running=estimates.running,
        coefficients=question.coefficients,
        serving=question.serving,
    )
    return replace(estimates, ttft_s=found.ttft.of(statistic), tpot_s=found.tpot.of(statistic))
