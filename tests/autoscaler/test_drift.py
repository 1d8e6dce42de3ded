from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.controller import ControllerState, step
from autoscaler.drift import DriftState, ratios, step_drift
from autoscaler.reasons import Action
from autoscaler.replan_params import Planned, ReplanMode, ReplanParams
from autoscaler.snapshot import Decision, WorkloadObservation
from tests.autoscaler.build import main_only, params

PLANNED = Planned(
    prompt_tokens=1000.0,
    output_tokens=200.0,
    requests_per_s=2.0,
    ttft_s=0.5,
    tpot_s=0.02,
    concurrency=16.0,
)
PARAMS = ReplanParams(
    mode=ReplanMode.ADVISE,
    band=1.5,
    hold_s=60.0,
    cooldown_s=600.0,
    min_requests=50,
    planned=PLANNED,
)


def seen(**changes: float) -> WorkloadObservation:
    """As planned, but for `changes`."""
    as_planned = WorkloadObservation(
        pool="main",
        observed_s=0.0,
        requests=500.0,
        requests_per_s=2.0,
        prompt_tokens=1000.0,
        output_tokens=200.0,
        streams=500.0,
        ttft_s=0.5,
        tpot_s=0.02,
        in_flight=16.0,
    )
    return replace(as_planned, **changes)


def run(
    times: range, look: object, *, p: ReplanParams = PARAMS, busy: bool = False
) -> list[tuple[int, Decision]]:
    """Proposals of a run in which `look(t)` is seen at each t."""
    state, proposals = DriftState(), []
    for now_s in times:
        observed = look(now_s)  # type: ignore[operator]
        state, proposal = step_drift(
            state,
            None if observed is None else replace(observed, observed_s=float(now_s)),
            busy=busy,
            now_s=float(now_s),
            params=p,
            stale_after_s=10.0,
        )
        if proposal is not None:
            proposals.append((now_s, proposal))
    return proposals


def test_the_workload_of_the_plan_is_no_drift() -> None:
    assert run(range(0, 2000, 5), lambda _: seen()) == []


def test_longer_prompts_are_drift_once_they_have_lasted() -> None:
    ((at_s, proposal),) = run(range(0, 300, 5), lambda _: seen(prompt_tokens=2100.0))
    assert (at_s, proposal.action, proposal.value) == (60, Action.REPLAN, 1)
    assert "prompts 2.10 times the plan's" in proposal.reason
    assert dict(proposal.numbers)["prompt_tokens"] == 2100.0


def test_a_burst_that_passes_is_none() -> None:
    assert run(range(0, 400, 5), lambda t: seen(requests_per_s=9.0 if t % 50 else 2.0)) == []


def test_a_proposal_is_repeated_after_the_cooldown() -> None:
    proposals = run(range(0, 1500, 5), lambda _: seen(output_tokens=50.0))
    assert [at_s for at_s, _ in proposals] == [60, 660, 1260]


@pytest.mark.parametrize(
    "unusable",
    [
        lambda t: None if t == 50 else seen(prompt_tokens=9000.0),
        lambda t: seen(prompt_tokens=9000.0, requests=10.0 if t == 50 else 500.0),
        lambda t: seen(prompt_tokens=math.nan if t == 50 else 9000.0),
    ],
)
def test_what_is_missing_holds_and_the_delay_starts_anew(unusable: object) -> None:
    ((at_s, _),) = run(range(0, 300, 5), unusable)
    assert at_s == 115


def test_stale_observations_say_nothing() -> None:
    state, proposal = step_drift(
        DriftState(since_s=(("prompt_tokens", 0.0),)),
        seen(prompt_tokens=9000.0),
        busy=False,
        now_s=100.0,
        params=PARAMS,
        stale_after_s=10.0,
    )
    assert (state.since_s, proposal) == ((), None)


def test_while_the_pool_moves_and_when_switched_off_nobody_looks() -> None:
    def longer(_: int) -> WorkloadObservation:
        return seen(prompt_tokens=9000.0)

    assert run(range(0, 600, 5), longer, busy=True) == []
    assert run(range(0, 600, 5), longer, p=replace(PARAMS, mode=ReplanMode.OFF)) == []


@pytest.mark.parametrize(
    ("in_flight", "tpot_s", "drifts"),
    [
        (8.0, 0.06, True),  # slow although there is little to do
        (40.0, 0.06, False),  # slow under more than was planned for: that is load, not cost
        (16.0, 0.01, True),  # fast at the load that was planned for
        (2.0, 0.01, False),  # fast because there is little to do
    ],
)
def test_cost_is_compared_at_a_load_the_plan_speaks_of(
    in_flight: float, tpot_s: float, *, drifts: bool
) -> None:
    found = ratios(seen(in_flight=in_flight, tpot_s=tpot_s), PARAMS)
    assert ("tpot_s" in found) == drifts


def test_cost_is_not_compared_while_lengths_have_drifted() -> None:
    assert "ttft_s" not in ratios(seen(prompt_tokens=4000.0, ttft_s=3.0), PARAMS)


def test_what_the_plan_does_not_say_does_not_drift() -> None:
    silent = replace(PARAMS, planned=Planned(prompt_tokens=1000.0, output_tokens=200.0))
    assert set(ratios(seen(requests_per_s=99.0, tpot_s=9.0), silent)) == {
        "prompt_tokens",
        "output_tokens",
    }


@given(
    st.floats(0.01, 100.0),
    st.floats(0.01, 100.0),
    st.floats(0.01, 100.0),
    st.floats(0.1, 10.0),
)
def test_seen_and_planned_in_another_unit_are_the_same_drift(
    prompt: float, output: float, rate: float, unit: float
) -> None:
    one = seen(
        prompt_tokens=1000 * prompt,
        output_tokens=200 * output,
        requests_per_s=2 * rate,
        streams=0.0,
    )
    scaled = replace(
        PARAMS,
        planned=Planned(
            prompt_tokens=1000 * unit, output_tokens=200 * unit, requests_per_s=2 * unit
        ),
    )
    other = replace(
        one,
        prompt_tokens=one.prompt_tokens * unit,
        output_tokens=one.output_tokens * unit,
        requests_per_s=one.requests_per_s * unit,
    )
    assert ratios(other, scaled) == pytest.approx(ratios(one, PARAMS))


def test_the_controller_tells_its_proposal_among_its_decisions() -> None:
    p = params(replan=replace(PARAMS, hold_s=10.0))
    state, told = ControllerState(), []
    for now_s in range(0, 30, 2):
        observed = replace(seen(prompt_tokens=5000.0), observed_s=float(now_s))
        snapshot = replace(main_only(float(now_s)), workloads=(observed,))
        result = step(state, snapshot, p)
        state = result.state
        told += [d for d in result.decisions if d.action is Action.REPLAN]
    assert [d.value for d in told] == [1]
