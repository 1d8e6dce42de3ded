"""What does the cost model say of the engine step that was profiled, and by which coefficients?

A trace of one phase repeats one kind of step: decode, `batch` sequences at `context` tokens; or
prefill, `batch` prompts of `context` tokens in one pass. Its predicted parts are per device, as a
trace divided by its devices is: with pp stages a device does 1/pp of a pass.

Invariant: the coefficients named are those that the predicted step was computed with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.calibration.nsys_updates import Phase, TraceOf
from cluster.costmodel.case import Case, make_case
from cluster.costmodel.chain import EXPERTS
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.families import family_of
from cluster.costmodel.precision import as_held
from cluster.costmodel.steps import StepLoad, step_parts
from cluster.errors import InputError
from cluster.model.hardware import NodeGroup
from cluster.model.layout import Layout, LayoutTable
from cluster.model.model_spec import ModelSpec

Floats = NDArray[np.float64]
_NOTED = 0.1  # share of weights from which another format is worth a note


@dataclass(frozen=True, kw_only=True)
class TracedStep:
    """The profiled step: sequences (or prompts) of the whole replica, tokens of each."""

    phase: Phase
    batch: int
    context: int
    layout: Layout
    backend: str = "vllm"
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """Predicted seconds per step and device by part, and what the parts rest on."""

    parts: dict[str, float]
    trace: TraceOf
    notes: tuple[str, ...] = ()


def expect(
    model: ModelSpec, group: NodeGroup, step: TracedStep, *, coefficients: Coefficients
) -> Expectation:
    """The cost model's view of `step` of `model` on devices of `group`.

    Raises InputError for degrees that make no grid of devices, or a batch without a token.
    """
    _check(model, step)
    held = as_held(model, group.device)
    table = LayoutTable.from_layouts([step.layout])
    case = make_case(held, group, table, coefficients, backend=step.backend, version=step.version)
    parts = step_parts(case, _load(case, step), coefficients)
    seconds = {name: float(np.sum(value)) / step.layout.pp for name, value in parts.items()}
    trace, notes = _trace_of(case, group, step, coefficients=coefficients)
    return Expectation(parts=seconds, trace=trace, notes=notes)


def _check(model: ModelSpec, step: TracedStep) -> None:
    layout = step.layout
    ranks, experts = layout.tp * layout.dp, layout.moe_tp * layout.moe_ep
    if model.experts and ranks != experts:
        raise InputError(
            f"no expert grid: tp x dp = {ranks}, but moe_tp x moe_ep = {experts}; both count the "
            "devices of a stage. Fix: pass the degrees that were profiled."
        )
    if step.batch < 1 or step.context < 1:
        raise InputError(
            f"a step of {step.batch} sequences of {step.context} tokens has no work; both must be "
            "at least 1. Fix: pass what was profiled."
        )


def _load(case: Case, step: TracedStep) -> StepLoad:
    sequences = np.array([max(step.batch / step.layout.dp, 1.0)])
    context = np.array([float(step.context)])
    none = np.zeros(1)
    ranks = np.where(case.is_moe, case.grid.dp, 1.0)
    decodes = step.phase == "decode"
    prompts = none if decodes else sequences * context
    return StepLoad(
        decode=sequences if decodes else none,
        context=context,
        prefill=prompts,
        prompt=context,
        routed=(sequences if decodes else prompts) * ranks,
        queries=np.ones(1),
        cached=none,
        offloaded=none,
    )


def _trace_of(
    case: Case, group: NodeGroup, step: TracedStep, *, coefficients: Coefficients
) -> tuple[TraceOf, tuple[str, ...]]:
    chain, cores, names = case.chain, case.cores, coefficients.names
    bytes_ = (chain.count * chain.rows * chain.cols * chain.matrices * chain.bytes_).ravel()
    formats = np.array([names[position].split(".")[2] for position in chain.mbu.ravel()])
    routed = (chain.part == EXPERTS).ravel()
    dense, other_dense = _most(formats[~routed].tolist(), bytes_[~routed])
    experts, other_experts = _most(formats[routed].tolist(), bytes_[routed])
    kinds = [names[position].split(".")[0] for position in cores.decode_mbu.ravel()]
    attention, other_kinds = _most(kinds, cores.count.ravel())
    notes = tuple(
        f"{what} are {', '.join((chosen, *others))}; the trace cannot tell them apart and only "
        f"{chosen}'s coefficient is corrected"
        for what, chosen, others in (
            ("formats of dense products", dense, other_dense),
            ("formats of expert products", experts, other_experts),
            ("kinds of attention", attention, other_kinds),
        )
        if others
    )
    trace = TraceOf(
        family=family_of(group.device).value,
        gemm=dense,
        experts=experts,
        attention=attention,
        phase=step.phase,
        backend=step.backend,
    )
    return trace, notes


def _most(names: list[str], weights: Floats) -> tuple[str, tuple[str, ...]]:
    """The name with the most weight, and others that have a tenth or more; "" of nothing."""
    total: dict[str, float] = {}
    for name, weight in zip(names, weights.tolist(), strict=True):
        total[name] = total.get(name, 0.0) + weight
    if not total:
        return "", ()
    first = max(total, key=lambda name: total[name])
    least = _NOTED * sum(total.values())
    return first, tuple(sorted(name for name in total if name != first and total[name] >= least))
