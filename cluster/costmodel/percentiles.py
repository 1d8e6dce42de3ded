"""Which percentiles go with an estimate? The closed loop of `estimate`, spread over requests.

Invariant: the means are the estimate's own TTFT and TPOT.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.calibration_file import default_coefficients
from cluster.costmodel.case import make_case
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.distributions import Latencies, latencies
from cluster.costmodel.estimate import PLAIN, EstimateTable, Serving, demand_of
from cluster.costmodel.precision import as_held
from cluster.costmodel.service import SteadyState, burst_share
from cluster.model.hardware import NodeGroup
from cluster.model.layout import Layout, LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.workload import Workload

Floats = NDArray[np.float64]


def latencies_of(
    model: ModelSpec,
    group: NodeGroup,
    table: LayoutTable,
    workload: Workload,
    *,
    state: SteadyState,
    concurrency: Floats,
    running: Floats,
    coefficients: Coefficients | None = None,
    serving: Serving = PLAIN,
) -> Latencies:
    """Percentiles of a table whose estimates hold `state`, `concurrency` and `running`; (n,)."""
    chosen = coefficients if coefficients is not None else default_coefficients()
    case = make_case(
        as_held(model, group.device),
        group,
        table,
        chosen,
        backend=serving.backend,
        version=serving.version,
    )
    demand = demand_of(
        case.grid,
        workload,
        serving,
        table,
        offered=concurrency,
        running=running,
    )
    return latencies(state, demand, burst=burst_share(case, demand, chosen))


def latencies_at(
    model: ModelSpec,
    group: NodeGroup,
    layout: Layout,
    workload: Workload,
    *,
    estimates: EstimateTable,
    index: int,
    coefficients: Coefficients | None = None,
    serving: Serving = PLAIN,
) -> Latencies:
    """Percentiles of the one row at `index`, that of `layout`; columns (1,)."""
    return latencies_of(
        model,
        group,
        LayoutTable.from_layouts([layout]),
        workload,
        state=_row(estimates.state, index),
        concurrency=estimates.concurrency[[index]],
        running=estimates.running[[index]],
        coefficients=coefficients,
        serving=serving,
    )


def _row(state: SteadyState, index: int) -> SteadyState:
    picked: dict[str, Floats | dict[str, Floats]] = {}
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, dict):
            picked[field.name] = {name: part[[index]] for name, part in value.items()}
        else:
            picked[field.name] = value[[index]]
    return SteadyState(**picked)  # type: ignore[arg-type]  # fields keep their kinds
