"""What does the cost model say of measured runs? All of them in one pass of its formulas.

Runs of one model, system, engine and formats are lowered together; the cases are then stacked, so
that a fit can evaluate thousands of unlike runs in milliseconds.

What a run does not record is assumed: 97 % of memory is the engine's, a chunk of 8192 tokens, a
KV cache as in `formats`. InferenceX's three shapes (1024/1024, 1024/8192, 8192/1024) draw lengths
uniformly from 0.8 to 1.0 of the nominal ones, 0.9 on average; other load generators send equal
lengths. TensorRT-LLM builds that ran DeepSeek with its multi-token prediction head are known by
version: their TPOT is half that of their neighbours in the same conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from cluster.calibration.formats import as_run
from cluster.calibration.runs import Run, read_degrees
from cluster.costmodel.case import Case, make_case, stack
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.memory import memory_table
from cluster.costmodel.service import Demand, SteadyState, steady_state
from cluster.errors import InputError, UnknownNameError
from cluster.model.devices import get_device
from cluster.model.hardware import NodeGroup
from cluster.model.layout import Layout, LayoutTable
from cluster.model.model_spec import ModelSpec

Floats = NDArray[np.float64]

HEADROOM = 0.03
CHUNK = 8192
DRAWN_SHAPES = frozenset({(1024, 1024), (1024, 8192), (8192, 1024)})
DRAWN_MEAN = 0.9
_NODES = 64

SYSTEMS: dict[str, tuple[str, int]] = {
    "a100_sxm": ("a100-80", 8),
    "h100_sxm": ("h100", 8),
    "h200_sxm": ("h200", 8),
    "b200_sxm": ("b200", 8),
    "b300_sxm": ("b300", 8),
    "gb200": ("gb200", 4),
    "gb300": ("gb300", 4),
    "l40s": ("l40s", 8),
    "rtx_pro_6000_server": ("rtx-pro-6000", 8),
}
"""Names of systems in runs files: device, devices per node."""

_SPECULATIVE = frozenset({("trtllm", "1.1.0rc2.post2"), ("trtllm", "1.2.0rc6.post3")})
_DRAFTS, _DRAFTS_RANKS = 3.0, 1.0  # tokens drafted, without and with attention data parallelism
_DRAFT_SHARE = 1.0 / 60.0  # one prediction layer beside about sixty


_CODES = frozenset({"cut", "part", "kind"})  # integers that are no positions


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """Runs ready for evaluation: rows in the order given."""

    case: Case
    demand: Demand
    speculative: NDArray[np.bool_]  # runs with a prediction head

    def take(self, rows: NDArray[np.int64]) -> Lowered:
        """Only the runs at `rows`."""
        return Lowered(
            case=_reordered(self.case, rows),
            demand=_reordered_demand(self.demand, rows),
            speculative=self.speculative[rows],
        )


def predict(
    runs: Sequence[Run],
    models: Callable[[str], ModelSpec],
    *,
    coefficients: Coefficients,
    as_written: bool = False,
) -> tuple[Floats, Floats]:
    """Seconds of TTFT and TPOT per run. Raises InputError for an unknown model or system."""
    lowered = lower(runs, models, coefficients=coefficients, as_written=as_written)
    state = evaluate_runs(lowered, coefficients)
    return state.ttft_s, state.tpot_s


def with_builds(coefficients: Coefficients, runs: Sequence[Run]) -> Coefficients:
    """`coefficients` with a set of its own for every engine version of `runs`, 1 where new."""
    names = sorted(
        {
            f"build.{run.backend}.{run.backend_version or 'unknown'}.{field}"
            for run in runs
            for field in ("time", "prefill", "request", "burst")
        }
    )
    new = {name: 1.0 for name in names if name not in coefficients}
    return coefficients.updated(new, source="the backend's own") if new else coefficients


def lower(
    runs: Sequence[Run],
    models: Callable[[str], ModelSpec],
    *,
    coefficients: Coefficients,
    as_written: bool = False,
) -> Lowered:
    """The case and the demand of every run."""
    if not runs:
        raise InputError("there are no runs to predict.")
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, run in enumerate(runs):
        key = (run.config, run.system, run.backend, run.backend_version, run.precision)
        groups.setdefault((*key, run.gemm_quant, run.moe_quant), []).append(index)
    cases: list[Case] = []
    demands: list[Demand] = []
    flags: list[NDArray[np.bool_]] = []
    for members in groups.values():
        chosen = [runs[index] for index in members]
        model = as_run(models(chosen[0].config), chosen[0])
        case, demand, flag = _lower_group(
            model, chosen, coefficients=coefficients, as_written=as_written
        )
        cases.append(case)
        demands.append(demand)
        flags.append(flag)
    back = np.argsort(np.concatenate([np.asarray(m) for m in groups.values()]), kind="stable")
    stacked = stack(cases)
    joined = Demand(
        **{f.name: np.concatenate([getattr(d, f.name) for d in demands]) for f in fields(Demand)}
    )
    return Lowered(case=stacked, demand=joined, speculative=np.concatenate(flags)).take(back)


def evaluate_runs(lowered: Lowered, coefficients: Coefficients) -> SteadyState:
    """The steady state of every run under `coefficients` (their names as when lowered)."""
    return steady_state(lowered.case, speculating(lowered, coefficients), coefficients)


def speculating(lowered: Lowered, coefficients: Coefficients) -> Demand:
    """The demand of every run, with what those with a prediction head draft and keep."""
    ranked = lowered.case.grid.dp > 1.0
    drafts = np.where(ranked, _DRAFTS_RANKS, _DRAFTS)
    kept = np.where(
        ranked,
        coefficients.value("speculation.accepted_ranks"),
        coefficients.value("speculation.accepted"),
    )
    return replace(
        lowered.demand,
        queries=np.where(lowered.speculative, 1.0 + drafts, 1.0),
        accepted=np.where(lowered.speculative, kept, 1.0),
        draft_share=np.where(lowered.speculative, drafts * _DRAFT_SHARE, 0.0),
    )


def rows_of(lowered: Lowered, position: int) -> NDArray[np.int64]:
    """Runs that the coefficient at `position` can touch: those whose curves point at it.

    A coefficient that no curve points at is read by name in the formulas: it touches all.
    """
    case = lowered.case
    runs = len(lowered.speculative)
    touched, pointed = np.zeros(runs, dtype=bool), False
    for section in (case.machine, case.chain, case.cores, case.engine):
        counted = getattr(section, "count", np.ones(1)) > 0.0
        for column in fields(section):
            values = getattr(section, column.name)
            if values.dtype != np.int64 or column.name in _CODES:
                continue
            here = (values == position) & counted
            pointed |= bool(here.any())
            touched |= here.any(axis=0) if here.ndim > 1 else here
    return np.flatnonzero(touched) if pointed else np.arange(runs)


def group_of(system: str) -> NodeGroup:
    """Nodes of a system by its name in runs files, or by a device's name (8 to a node)."""
    device, per_node = SYSTEMS.get(system, (system, 8))
    try:
        return NodeGroup(nodes=_NODES, devices_per_node=per_node, device=get_device(device))
    except UnknownNameError as error:
        raise UnknownNameError(
            kind="system", name=system, known=SYSTEMS, hint="Device names are allowed as well."
        ) from error


def _lower_group(
    model: ModelSpec, runs: Sequence[Run], *, coefficients: Coefficients, as_written: bool
) -> tuple[Case, Demand, NDArray[np.bool_]]:
    group, first = group_of(runs[0].system), runs[0]
    table = LayoutTable.from_layouts(layout_of(run, as_written=as_written) for run in runs)
    case = make_case(
        model,
        group,
        table,
        coefficients,
        backend=first.backend,
        version=first.backend_version or "unknown",
    ).merged()
    drawn = np.array([(run.isl, run.osl) in DRAWN_SHAPES for run in runs])
    scale = np.where(drawn, DRAWN_MEAN, 1.0)
    isl = np.array([float(run.isl) for run in runs]) * scale
    osl = np.array([float(run.osl) for run in runs]) * scale
    offered = np.array([float(run.concurrency) for run in runs])
    admitted = np.empty_like(offered)
    grid = case.grid
    # Engines admit while blocks are free: what requests hold on average counts.
    held = np.maximum(np.rint(isl + osl / 2.0), 1.0)
    for context in np.unique(held):
        memory = memory_table(
            model, group.device, grid, table, context=int(context), headroom=HEADROOM
        )
        admitted = np.where(held == context, np.maximum(memory.max_sequences, grid.dp), admitted)
    demand = Demand(
        isl=isl,
        osl=osl,
        cached=np.zeros_like(isl),
        equal=~drawn,
        queries=np.ones_like(isl),
        accepted=np.ones_like(isl),
        draft_share=np.zeros_like(isl),
        offloaded=np.zeros_like(isl),
        chunk=np.full_like(isl, CHUNK),
        offered=np.maximum(offered / grid.dp, 1.0),
        admitted=np.maximum(np.minimum(offered, admitted) / grid.dp, 1.0),
    )
    head = (first.backend, first.backend_version) in _SPECULATIVE
    speculative = head and model.architecture.startswith("Deepseek")
    return case, demand, np.full(len(runs), speculative)


def layout_of(run: Run, *, as_written: bool = False) -> Layout:
    """The layout that the degrees of a run mean."""
    written = (run.tp, run.attention_dp, run.moe_tp, run.moe_ep)
    tp, dp, moe_tp, moe_ep = written if as_written else read_degrees(run)
    return Layout(
        tp=tp,
        dp=dp,
        pp=run.pp,
        moe_tp=moe_tp,
        moe_ep=moe_ep,
        max_num_seqs=run.concurrency,
        max_num_batched_tokens=CHUNK,
    )


def _reordered(case: Case, order: NDArray[np.int64]) -> Case:
    made = {}
    for section in fields(Case):
        part = getattr(case, section.name)
        made[section.name] = type(part)(
            **{f.name: getattr(part, f.name)[..., order] for f in fields(part)}
        )
    return Case(**made)


def _reordered_demand(demand: Demand, order: NDArray[np.int64]) -> Demand:
    return Demand(**{f.name: getattr(demand, f.name)[order] for f in fields(Demand)})
