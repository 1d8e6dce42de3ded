"""Is the plan still one for what is served? Ratios of seen to planned, and when they mean a change.

    ratio = seen / planned, drift: outside [1/band, band] for hold_s without a break

Lengths and rate are compared as they are; TTFT (without the wait in line) and TPOT only at the
load the plan expects them at: slower counts up to the plan's concurrency, faster only from half of
it on, and neither while lengths have drifted, which moves them by itself.

Invariants: what is missing, stale, or rests on too few requests drifts nowhere and starts the delay
anew; one proposal per cooldown; a factor on both sides of a ratio changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoscaler.guards import held, since
from autoscaler.reasons import Action, Reason
from autoscaler.replan_params import Planned, ReplanMode, ReplanParams
from autoscaler.snapshot import Decision, WorkloadObservation

_NAMES = {
    "prompt_tokens": "prompts",
    "output_tokens": "answers",
    "requests_per_s": "requests per second",
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
}
QUANTITIES = tuple(_NAMES)


@dataclass(frozen=True, kw_only=True)
class DriftState:
    """`since_s`: since when each quantity is outside the band. `proposed_s`: the last time."""

    since_s: tuple[tuple[str, float], ...] = ()
    proposed_s: float | None = None


def ratios(seen: WorkloadObservation, params: ReplanParams) -> dict[str, float]:
    """Seen over planned, of each quantity that both sides know and that can be compared now."""
    planned = params.planned
    found = {}
    if seen.requests >= params.min_requests:
        found = {
            "prompt_tokens": _ratio(seen.prompt_tokens, planned.prompt_tokens),
            "output_tokens": _ratio(seen.output_tokens, planned.output_tokens),
            "requests_per_s": _ratio(seen.requests_per_s, planned.requests_per_s),
        }
    lengths = [found.get(name, math.nan) for name in ("prompt_tokens", "output_tokens")]
    if seen.streams >= params.min_requests and all(_inside(r, params) for r in lengths):
        costs = {
            "ttft_s": _ratio(seen.ttft_s, planned.ttft_s),
            "tpot_s": _ratio(seen.tpot_s, planned.tpot_s),
        }
        found |= {name: r for name, r in costs.items() if _comparable(r, seen, planned)}
    return {name: ratio for name, ratio in found.items() if math.isfinite(ratio)}


def step_drift(
    state: DriftState,
    seen: WorkloadObservation | None,
    *,
    busy: bool,
    now_s: float,
    params: ReplanParams,
    stale_after_s: float,
) -> tuple[DriftState, Decision | None]:
    """One step. `busy`: the pool moves already."""
    known = (
        params.mode is not ReplanMode.OFF
        and not busy
        and seen is not None
        and abs(now_s - seen.observed_s) <= stale_after_s
    )
    if not known or seen is None:
        return replace(state, since_s=()), None
    found = ratios(seen, params)
    before = dict(state.since_s)
    outside = {
        name: time_s
        for name, ratio in found.items()
        if (time_s := since(before.get(name), holds=not _inside(ratio, params), now_s=now_s))
        is not None
    }
    state = replace(state, since_s=tuple(sorted(outside.items())))
    lasting = [name for name in outside if held(outside[name], params.hold_s, now_s=now_s)]
    if not lasting or not _cool(state, now_s=now_s, params=params):
        return state, None
    return replace(state, proposed_s=now_s), _proposal(seen, lasting, found, params)


def _proposal(
    seen: WorkloadObservation,
    names: list[str],
    found: Mapping[str, float],
    params: ReplanParams,
) -> Decision:
    words = ", ".join(f"{_NAMES[name]} {found[name]:.2f} times the plan's" for name in names)
    numbers = {f"{name}_ratio": ratio for name, ratio in found.items()}
    numbers |= {name: getattr(seen, name) for name in found}
    return Decision(
        action=Action.REPLAN,
        pool=seen.pool,
        value=len(names),
        kind=Reason.DRIFT,
        reason=f"the workload is no longer the plan's: {words}",
        numbers=tuple(sorted({**numbers, "band": params.band, "requests": seen.requests}.items())),
    )


def _cool(state: DriftState, *, now_s: float, params: ReplanParams) -> bool:
    return state.proposed_s is None or now_s - state.proposed_s >= params.cooldown_s


def _ratio(seen: float, planned: float) -> float:
    """NaN where one side is not known."""
    return seen / planned if planned > 0.0 and math.isfinite(seen) and seen >= 0.0 else math.nan


def _inside(ratio: float, params: ReplanParams) -> bool:
    """Whether it is in the band; so is what nobody knows."""
    return math.isnan(ratio) or 1.0 / params.band <= ratio <= params.band


def _comparable(ratio: float, seen: WorkloadObservation, planned: Planned) -> bool:
    """Whether the load is one at which the plan's expectation says something about `ratio`."""
    if ratio >= 1.0:
        return seen.in_flight <= planned.concurrency
    return seen.in_flight >= planned.concurrency / 2.0
