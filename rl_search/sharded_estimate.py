"""What do layouts with per-operator dims come to? `estimate`, settled again with their own steps.

Dims change how long a step without and one with prompts takes, so the loop of `service` settles
elsewhere. The ratio of each step to that of the Megatron scheme enters the loop where a version of
an engine scales its steps (`Engine.build_time`, `build_prefill`), at the load the loop settled at
before. Once the load stands still, decode and mixed steps are exactly those of `sharded_parts`; two
rounds leave TPOT and TTFT within 0.02 % of that (tested). A burst's full chunks are taken at the
mixed step's ratio.

Invariants: rows with the default dims equal `estimate`; parts sum to their totals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cluster.costmodel.calibration_file import default_coefficients
from cluster.costmodel.case import Case, make_case
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.estimate import PLAIN, EstimateTable, Serving, demand_of, estimate
from cluster.costmodel.memory import DEFAULT_HEADROOM, MemoryTable, memory_table
from cluster.costmodel.precision import as_held
from cluster.costmodel.service import (
    Demand,
    SteadyState,
    prefill_only,
    steady_state,
    step_loads,
)
from cluster.costmodel.sharded_memory import sharded_memory
from cluster.costmodel.sharded_steps import Sharding, expert_kinds, sharded_parts
from cluster.costmodel.sharding import recipe
from cluster.costmodel.sharding_states import Experts
from cluster.costmodel.steps import Parts, StepLoad, step_parts, total
from cluster.model.hardware import NodeGroup
from cluster.model.layout import Dims, LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.workload import Workload
from rl_search.estimate_rows import followed_by, spliced, taken

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUNDS = 2
_NO_LIMIT = -1e6  # headroom that leaves a million times the memory there is
_BLOCK = 4096  # rows whose columns stay in the cache
_UNSCALED = ("offload", "host")  # the parts of a step that no version of an engine scales


@dataclass(frozen=True)
class Steps:
    """What n layouts carry: `loads` in a step without prompts, and in one with them."""

    case: Case
    demand: Demand
    loads: tuple[StepLoad, StepLoad]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the rows of a table are estimated for. `model` as the device holds it."""

    model: ModelSpec
    group: NodeGroup
    workload: Workload
    serving: Serving
    coefficients: Coefficients

    @classmethod
    def of(
        cls,
        model: ModelSpec,
        group: NodeGroup,
        workload: Workload,
        *,
        coefficients: Coefficients | None = None,
        serving: Serving = PLAIN,
    ) -> Setting:
        """With the shipped calibration where there is none."""
        return cls(
            model=as_held(model, group.device),
            group=group,
            workload=workload,
            serving=serving,
            coefficients=default_coefficients() if coefficients is None else coefficients,
        )

    def case(self, table: LayoutTable) -> Case:
        """The cost model's view of the rows of `table`."""
        return make_case(
            self.model,
            self.group,
            table,
            self.coefficients,
            backend=self.serving.backend,
            version=self.serving.version,
        )

    def estimate(self, table: LayoutTable, *, headroom: float) -> EstimateTable:
        """Every row under default dims, its batch full."""
        return estimate(
            self.model,
            self.group,
            table,
            self.workload,
            concurrency=table.max_num_seqs,
            headroom=headroom,
            coefficients=self.coefficients,
            serving=self.serving,
        )

    def estimate_full(self, table: LayoutTable, *, headroom: float) -> EstimateTable:
        """`estimate` of rows whose batch does not fit, at the operating point where it would."""
        return replace(
            self.estimate(table, headroom=_NO_LIMIT),
            memory=memory_of(self, table, headroom=headroom),
        )

    def steps(self, table: LayoutTable, made: EstimateTable) -> Steps:
        """What the rows of `table` carry where `made` settled."""
        case = self.case(table)
        demand = demand_of(
            case.grid,
            self.workload,
            self.serving,
            table,
            offered=made.concurrency,
            running=made.running,
        )
        return Steps(case, demand, step_loads(case, demand, made.state.decoding))

    def sharding(self, table: LayoutTable, *, default: bool = False) -> Sharding:
        """The walks of the rows' dims, or of the default ones. Raises as `sharding.read`."""
        assignments: tuple[Dims, ...] = ((),) if default else table.assignments
        dims = np.zeros(len(table), dtype=np.int64)
        if table.dims is not None and not default:
            dims = table.dims
        pairs = dims * len(Experts) + expert_kinds(self.model, table)
        used, rows = np.unique(pairs, return_inverse=True)
        if not len(used):  # no rows, which still have as many operators
            used = np.zeros(1, dtype=np.int64)
        recipes = [
            recipe(self.model, assignments[pair // len(Experts)], Experts(pair % len(Experts)))
            for pair in used.tolist()
        ]
        return Sharding.of(recipes, rows)


def memory_of(setting: Setting, table: LayoutTable, *, headroom: float) -> MemoryTable:
    """What every row holds under default dims; no time is estimated."""
    return memory_table(
        setting.model,
        setting.group.device,
        setting.case(table).grid,
        table,
        context=setting.workload.isl + setting.workload.osl,
        headroom=headroom,
        offloaded=setting.serving.offload_bytes,
    )


def estimate_layouts(
    model: ModelSpec,
    group: NodeGroup,
    table: LayoutTable,
    workload: Workload,
    *,
    concurrency: ArrayLike,
    headroom: float = DEFAULT_HEADROOM,
    coefficients: Coefficients | None = None,
    serving: Serving = PLAIN,
) -> EstimateTable:
    """`estimate` of every row under its own per-operator dims. Raises as `sharding.read`."""
    made = estimate(
        model,
        group,
        table,
        workload,
        concurrency=concurrency,
        headroom=headroom,
        coefficients=coefficients,
        serving=serving,
    )
    if table.dims is None:
        return made
    rows = np.flatnonzero([bool(table.assignments[index]) for index in table.dims.tolist()])
    if not len(rows):
        return made
    setting = Setting.of(model, group, workload, coefficients=coefficients, serving=serving)
    return spliced(made, rows, resharded(setting, table.take(rows), taken(made, rows)))


def resharded(
    setting: Setting, table: LayoutTable, megatron: EstimateTable, *, rounds: int = ROUNDS
) -> EstimateTable:
    """`megatron`, the estimates of the rows under default dims, turned into those of their own."""
    blocks = [np.arange(i, min(i + _BLOCK, len(table))) for i in range(0, len(table), _BLOCK)]
    made = [
        _resharded(setting, table.take(rows), taken(megatron, rows), rounds=rounds)
        for rows in blocks
    ]
    return reduce(followed_by, made)


def _resharded(
    setting: Setting, table: LayoutTable, megatron: EstimateTable, *, rounds: int
) -> EstimateTable:
    case, workload = setting.case(table), setting.workload
    own, default = setting.sharding(table), setting.sharding(table, default=True)
    memory = sharded_memory(
        setting.model,
        setting.group.device,
        case.grid,
        table,
        megatron=megatron.memory,
        sharding=own,
        default=default,
        context=workload.isl + workload.osl,
    )
    offered = megatron.concurrency
    batch = np.minimum(np.asarray(table.max_num_seqs, dtype=np.float64), memory.max_sequences)
    running = np.minimum(offered, np.maximum(batch, case.grid.dp))
    demand = demand_of(
        case.grid, workload, setting.serving, table, offered=offered, running=running
    )
    settled = _settle(setting, case, own, demand, decoding=megatron.state.decoding, rounds=rounds)
    prefill, _ = prefill_only(settled.case, demand, settled.coefficients)
    return _figures(
        megatron,
        settled,
        memory=memory,
        running=running,
        ranks=np.minimum(case.grid.dp, offered),
        prefill=prefill * case.grid.dp,
    )


@dataclass(frozen=True, kw_only=True)
class _Settled:
    case: Case
    coefficients: Coefficients
    state: SteadyState


def _settle(
    setting: Setting,
    case: Case,
    sharding: Sharding,
    demand: Demand,
    *,
    decoding: Floats,
    rounds: int,
) -> _Settled:
    coefficients, plain = setting.coefficients, case.merged()

    def ratio(load: StepLoad) -> Floats:
        own = sharded_parts(case, sharding, load, coefficients)
        return _scaled_s(own) / _scaled_s(step_parts(plain, load, coefficients))

    for _ in range(rounds):
        decode, mixed = step_loads(case, demand, decoding)
        scaled, scaling = _scaled(plain, coefficients, decode=ratio(decode), mixed=ratio(mixed))
        state = steady_state(scaled, demand, scaling)
        decoding = state.decoding
    decode, _ = step_loads(case, demand, decoding)
    own = sharded_parts(case, sharding, decode, coefficients)
    parts = {name: seconds / demand.accepted for name, seconds in own.items()}
    state = replace(state, tpot_parts={**state.tpot_parts, **parts})
    return _Settled(case=scaled, coefficients=scaling, state=state)


def _scaled_s(parts: Parts) -> Floats:
    return total({name: seconds for name, seconds in parts.items() if name not in _UNSCALED})


def _scaled(
    case: Case, coefficients: Coefficients, *, decode: Floats, mixed: Floats
) -> tuple[Case, Coefficients]:
    """A case whose engine takes `decode` times as long for a step, `mixed` times with prompts."""
    values, engine, n = coefficients.values, case.engine, len(decode)
    time = np.broadcast_to(values[engine.build_time], (n,)) * decode
    prefill = np.broadcast_to(values[engine.build_prefill], (n,)) * mixed / decode
    first = len(coefficients.names)
    names = [f"build.dims.{index}" for index in range(2 * n)]
    scaling = replace(
        coefficients,
        names=(*coefficients.names, *names),
        values=np.concatenate([values, time, prefill]),
    )
    positions = first + np.arange(2 * n)
    # One column per layout in the engine: a case of n runs, which nobody takes apart by its grid.
    count = np.repeat(case.chain.count, n, axis=1)
    scaled = replace(
        case,
        chain=replace(case.chain, count=count),
        engine=replace(engine, build_time=positions[:n], build_prefill=positions[n:]),
    )
    return scaled, scaling


def _figures(
    megatron: EstimateTable,
    settled: _Settled,
    *,
    memory: MemoryTable,
    running: Floats,
    ranks: Floats,
    prefill: Floats,
) -> EstimateTable:
    state = settled.state
    rate, tpot = state.requests_per_s * ranks, state.tpot_s
    faster = rate / megatron.requests_per_s
    return replace(
        megatron,
        ttft_s=state.ttft_s,
        tpot_s=tpot,
        tokens_per_s_per_device=megatron.tokens_per_s_per_device * faster,
        tokens_per_s_per_user=1.0 / tpot,
        requests_per_s=rate,
        prefill_tokens_per_s=prefill,
        decode_tokens_per_s=state.decoding * ranks / tpot,
        running=running,
        memory=memory,
        parts=state.tpot_parts,
        ttft_parts=state.ttft_parts,
        state=state,
        cost_per_million_tokens=megatron.cost_per_million_tokens / faster,
    )
