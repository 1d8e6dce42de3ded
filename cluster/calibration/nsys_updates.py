"""Which coefficients does a correction of a part mean? From measured/predicted to new values.

A part is bound by one thing in a trace of one phase: decode by memory and by latencies, prefill by
arithmetic and by link bandwidth (`bounds` overrides it by part). A share of a peak is divided by
the ratio, a time of its own multiplied: t = work / (peak * share) and t = n * latency.

Invariants: a share stays in (0, 1], clipped with a note; parts that share a coefficient (the
collectives of a domain) move it by the ratio of their sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cluster.calibration import kernel_names as names
from cluster.calibration.nsys import COVERS
from cluster.errors import InputError, UnknownNameError

Bound = Literal["bandwidth", "arithmetic", "latency"]
Phase = Literal["decode", "prefill"]

_TIMES = ("_s", ".passes")  # coefficients that time is proportional to
_COLLECTIVES = (names.ALL_REDUCE, names.ALL_GATHER, names.REDUCE_SCATTER, names.SEND_RECV)
_TARGETS: Mapping[str, Mapping[Bound, str]] = {
    names.GEMM: {"bandwidth": "gemm.{family}.{gemm}.mbu", "arithmetic": "gemm.{family}.{gemm}.mfu"},
    names.EXPERTS: {
        "bandwidth": "experts.{family}.{experts}.mbu",
        "arithmetic": "experts.{family}.{experts}.mfu",
    },
    names.ATTENTION: {
        "bandwidth": "{attention}.{family}.decode_mbu",
        "arithmetic": "{attention}.{family}.prefill_mfu",
        "latency": "{attention}.{family}.floor_s",
    },
    **{
        part: {"bandwidth": "link.{family}.efficiency", "latency": "link.{family}.latency_s"}
        for part in _COLLECTIVES
    },
    names.ALL_TO_ALL: {
        "bandwidth": "all_to_all.efficiency",
        "latency": "link.{family}.latency_s",
    },
    names.ELEMENTWISE: {
        "latency": "kernel.{family}.small_s",
        "bandwidth": "elementwise.passes",
    },
}
_USUAL: Mapping[Phase, Mapping[str, Bound]] = {
    "decode": {
        names.GEMM: "bandwidth",
        names.EXPERTS: "bandwidth",
        names.ATTENTION: "bandwidth",
        **dict.fromkeys((*_COLLECTIVES, names.ALL_TO_ALL, names.ELEMENTWISE), "latency"),
    },
    "prefill": {
        names.GEMM: "arithmetic",
        names.EXPERTS: "arithmetic",
        names.ATTENTION: "arithmetic",
        **dict.fromkeys((*_COLLECTIVES, names.ALL_TO_ALL, names.ELEMENTWISE), "bandwidth"),
    },
}


@dataclass(frozen=True, kw_only=True)
class TraceOf:
    """What was profiled: device family, formats of weights, kind of attention, phase.

    `attention` is the coefficients' first word: attention, latent (MLA) or linear. `experts` is
    the format of routed experts where it differs from `gemm`. `backend` is the engine, whose own
    link coefficients (`link.<backend>.<family>.…`), if there are any, are meant.
    """

    family: str
    gemm: str
    phase: Phase
    experts: str = ""
    attention: str = "attention"
    backend: str = ""


@dataclass(frozen=True, kw_only=True)
class Updates:
    """New values by coefficient name, and what could not be used or was clipped."""

    values: Mapping[str, float]
    notes: tuple[str, ...] = ()


def coefficient_updates(
    ratios: Mapping[str, float],
    *,
    predicted: Mapping[str, float],
    current: Mapping[str, float],
    trace: TraceOf,
    bounds: Mapping[str, Bound] | None = None,
) -> Updates:
    """New coefficients after `ratios` (of `nsys.corrections`).

    `predicted` are the seconds per step the ratios were taken against (the weights where parts
    share a coefficient), `current` the values they were predicted with. Raises InputError for a
    bound that a part has no coefficient for, UnknownNameError for a coefficient not in `current`.
    """
    usual = _USUAL[trace.phase]
    weight: dict[str, list[tuple[float, float]]] = {}
    notes = []
    for part, ratio in ratios.items():
        bound = (bounds or {}).get(part, usual.get(part))
        if bound is None:
            notes.append(f"{part}: {ratio:.2f} times the prediction; no coefficient speaks for it.")
            continue
        name = _target(part, bound, trace=trace, current=current)
        seconds = sum(predicted.get(covered, 0.0) for covered in COVERS[part])
        weight.setdefault(name, []).append((seconds, ratio))
    values = {}
    for name, parts in weight.items():
        if name not in current:
            raise UnknownNameError(kind="coefficient", name=name, known=current)
        whole = sum(seconds for seconds, _ in parts)
        if whole <= 0.0:
            raise InputError(
                f"{name}: no time is predicted for the parts it is corrected by. Fix: pass the "
                "prediction that the ratios were taken against."
            )
        ratio = sum(seconds * ratio for seconds, ratio in parts) / whole
        longer = name.endswith(_TIMES)
        value = current[name] * ratio if longer else current[name] / ratio
        if not longer and value > 1.0:
            notes.append(f"{name} would be {value:.3g}; clipped to 1: nothing beats its peak.")
            value = 1.0
        values[name] = value
    return Updates(values=values, notes=tuple(notes))


def _target(part: str, bound: Bound, *, trace: TraceOf, current: Mapping[str, float]) -> str:
    choices = _TARGETS.get(part, {})
    if bound not in choices:
        raise InputError(
            f"part '{part}' has no coefficient for being bound by {bound}; it has "
            f"{', '.join(choices) or 'none'}. Fix: give another bound for it."
        )
    name = choices[bound].format(
        family=trace.family,
        gemm=trace.gemm,
        experts=trace.experts or trace.gemm,
        attention=trace.attention,
    )
    own = name.replace("link.", f"link.{trace.backend}.", 1)  # an engine's own collectives
    return own if trace.backend and own in current else name
