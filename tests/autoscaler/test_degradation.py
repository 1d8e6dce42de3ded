"""Tiers through `controller.step`, at a fixed size unless a test says otherwise."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.controller import ControllerState, step
from autoscaler.params import TierParams
from autoscaler.reasons import Action
from autoscaler.snapshot import Tier
from tests.autoscaler.build import (
    drive,
    load,
    main_only,
    of,
    params,
    size,
    snapshot,
    values,
)

FULL = {"rate": 3000.0, "flight": 8000.0, "queued": 16_000.0, "wait": 16.0}
CALM = {"rate": 100.0}


def at_ceiling(*loads, start_s=0.0):
    """One replica of at most one, a snapshot every 2 s."""
    return [main_only(start_s + 2.0 * i, target=1, **of_load) for i, of_load in enumerate(loads)]


def tiers(results):
    return [r.tier for r in results]


def test_tiers_rise_one_by_one_to_shed_and_fall_one_by_one():
    p = params(maximum=1)
    state, results = drive(p, at_ceiling(*[FULL] * 40))
    assert values(results, Action.TIER) == [1, 2, 3, 4]
    changes = [2.0 * i for i, r in enumerate(results) if values([r], Action.TIER)]
    assert changes == [6.0, 14.0, 22.0, 30.0]  # enter_s = 5 s, seen every 2 s, anew per tier
    _, results = drive(p, at_ceiling(*[CALM] * 100, start_s=80.0), state=state)
    assert values(results, Action.TIER) == [3, 2, 1, 0]
    changes = [2.0 * i for i, r in enumerate(results) if values([r], Action.TIER)]
    assert changes == [30.0, 62.0, 94.0, 126.0]


def test_a_spike_shorter_than_the_delay_changes_nothing():
    spiky = at_ceiling(*([FULL, FULL, CALM] * 30))
    _, results = drive(params(maximum=1), spiky)
    assert values(results, Action.TIER) == []


def test_between_leave_and_enter_the_tier_stays():
    p = params(maximum=1)
    state, _ = drive(p, at_ceiling(*[FULL] * 5))
    middle = {"rate": 700.0, "flight": 0.9 * 8000.0}
    _, results = drive(p, at_ceiling(*[middle] * 300, start_s=10.0), state=state)
    assert set(tiers(results)) == {Tier.NO_LOGPROBS}


def test_tiers_wait_for_replicas_that_can_still_come():
    full_not_waiting = {"rate": 3000.0, "flight": 8000.0, "queued": 2000.0, "wait": 2.0}
    p = params(maximum=4, ack_timeout_s=1000.0)
    coming = [main_only(2.0 * i, target=2, pending=1, **full_not_waiting) for i in range(15)]
    _, results = drive(p, coming)
    assert values(results, Action.TIER) == []
    assert any("can still come" in d.reason for d in of(results, Action.HOLD))
    # 30 s = 1.5 cold starts later they are overdue.
    coming = [main_only(2.0 * i, target=2, pending=1, **full_not_waiting) for i in range(25)]
    _, results = drive(p, coming)
    assert values(results, Action.TIER)[0] == 1


def test_tiers_do_not_wait_when_requests_already_wait_too_long():
    p = params(maximum=4, ack_timeout_s=1000.0)
    late = [main_only(2.0 * i, target=2, pending=1, **FULL) for i in range(5)]
    _, results = drive(p, late)
    assert values(results, Action.TIER) == [1]


def test_shed_stays_while_the_refused_demand_exceeds_the_capacity_then_probes():
    p = params(maximum=1)
    state, results = drive(p, at_ceiling(*[FULL] * 20))
    assert results[-1].tier is Tier.SHED
    shedding = {"rate": 3000.0, "flight": 2000.0}  # refused requests count as arrivals
    _, results = drive(p, at_ceiling(*[shedding] * 200, start_s=40.0), state=state)
    first = next(i for i, r in enumerate(results) if r.tier is not Tier.SHED)
    assert 2.0 * first == p.tiers.probe_s


def test_main_keeps_its_replicas_while_degraded():
    p = params(maximum=2)
    full = [main_only(2.0 * i, target=2, **FULL) for i in range(20)]
    state, _ = drive(p, full)
    calm = [main_only(40.0 + 2.0 * i, target=2, rate=600.0) for i in range(300)]
    _, results = drive(p, calm, state=state)
    normal = next(i for i, r in enumerate(results) if r.tier is Tier.NORMAL)
    scaled = next(i for i, r in enumerate(results) if values([r]))
    assert 2.0 * (scaled - normal) >= p.scaling.down_delay_s


def test_stale_data_holds_the_tier_then_fails_open():
    p = params(maximum=1)
    state, _ = drive(p, at_ceiling(*[FULL] * 20))
    blind = [main_only(40.0 + 2.0 * i, age=50.0 + 2.0 * i, **FULL) for i in range(100)]
    _, results = drive(p, blind, state=state)
    changes = [2.0 * i for i, r in enumerate(results) if values([r], Action.TIER)]
    assert values(results, Action.TIER) == [3, 2, 1, 0]
    assert changes == [60.0, 90.0, 120.0, 150.0]
    assert len(of(results, Action.HOLD)) == 1 + 4  # scaling once, each held tier once


def test_stale_data_never_raises_a_tier():
    blind = [main_only(2.0 * i, age=50.0, **FULL) for i in range(100)]
    _, results = drive(params(maximum=1), blind)
    assert set(tiers(results)) == {Tier.NORMAL}


def test_back_from_blindness_the_leave_delay_starts_anew():
    p = params(maximum=1)
    state, _ = drive(p, at_ceiling(*[FULL] * 20))
    blind = [main_only(40.0 + 2.0 * i, age=50.0, **FULL) for i in range(40)]
    state, results = drive(p, blind, state=state)
    assert results[-1].tier is Tier.LIGHT_MODEL
    _, results = drive(p, at_ceiling(*[CALM] * 15, start_s=120.0), state=state)
    assert set(tiers(results)) == {Tier.LIGHT_MODEL}


def with_light(now_s, *, light_target, light=None, **of_main):
    return snapshot(
        now_s,
        [size(now_s, target=1), size(now_s, name="light", target=light_target)],
        [load(now_s, **of_main), load(now_s, name="light", **(light or {}))],
    )


def test_the_light_pool_is_warmed_a_tier_early_and_released_late():
    p = params(maximum=1, light=True)
    state, light, log = ControllerState(), 0, []
    for i in range(700):
        result = step(
            state,
            with_light(2.0 * i, light_target=light, **(FULL if i < 20 else CALM)),
            p,
        )
        state = result.state
        for decision in result.decisions:
            if decision.action is Action.SCALE and decision.pool == "light":
                light = decision.value
                log.append((2.0 * i, light, result.tier))
    (on_s, on, on_tier), (off_s, off, _) = log
    assert (on, on_tier, off) == (1, Tier.SHORT_OUTPUT, 0)
    assert on_s == 14.0
    # NORMAL at 40 + 126 s; released 120 s later; then the delay to zero.
    assert off_s == 166.0 + p.tiers.light_release_s + p.scaling.to_zero_delay_s


def test_the_light_pool_grows_under_moved_load():
    p = params(maximum=1, light=True)
    moved = {"rate": 1500.0}
    _, results = drive(
        p, [with_light(2.0 * i, light_target=1, light=moved, **FULL) for i in range(20)]
    )
    assert ("light", 2) in [(d.pool, d.value) for d in of(results, Action.SCALE)]


def test_a_full_light_pool_leads_to_shedding_although_main_is_relieved():
    p = params(maximum=1, light=True)
    state, results = drive(p, [with_light(2.0 * i, light_target=1, **FULL) for i in range(12)])
    assert results[-1].tier is Tier.LIGHT_MODEL
    after = [with_light(24.0 + 2.0 * i, light_target=2, light=FULL, rate=500.0) for i in range(6)]
    _, results = drive(p, after, state=state)
    assert results[-1].tier is Tier.SHED
    assert "the light pool is at its maximum" in of(results, Action.TIER)[0].reason


def test_without_a_light_pool_tier_three_keeps_its_number():
    _, results = drive(params(maximum=1), at_ceiling(*[FULL] * 12))
    assert results[-1].tier is Tier.LIGHT_MODEL
    assert {d.pool for d in of(results, Action.SCALE)} == set()


steps = st.lists(
    st.tuples(
        st.floats(0.0, 4000.0),
        st.floats(0.0, 1500.0),
        st.floats(0.0, 30_000.0),
        st.floats(0.0, 30_000.0),
        st.integers(1, 12),
    ),
    min_size=1,
    max_size=30,
)


@given(steps)
@settings(max_examples=150, deadline=None)
def test_a_heavier_tier_never_follows_from_a_lighter_load(sequence):
    p = params(maximum=1, tiers=TierParams(enter_s=4.0, leave_s=10.0, probe_s=30.0))
    light, heavy = [], []
    for rate, more, queued, more_queued, repeats in sequence:
        for _ in range(repeats):
            now_s = 2.0 * len(light)
            light.append(main_only(now_s, rate=rate, queued=queued, wait=queued / 1000.0))
            total = queued + more_queued
            heavy.append(main_only(now_s, rate=rate + more, queued=total, wait=total / 1000.0))
    _, lighter = drive(p, light)
    _, heavier = drive(p, heavy)
    assert all(a <= b for a, b in zip(tiers(lighter), tiers(heavier), strict=True))
    for results in (lighter, heavier):
        seen = [Tier.NORMAL, *tiers(results)]
        assert all(abs(b - a) <= 1 for a, b in pairwise(seen))
