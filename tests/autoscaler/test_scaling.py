"""Scaling through `controller.step`: snapshots in, decisions out."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.controller import ControllerState, step
from autoscaler.params import Mode, ScalingParams
from autoscaler.reasons import Action
from autoscaler.snapshot import Tier
from cluster.errors import ConfigError, UnknownNameError
from tests.autoscaler.build import (
    drive,
    load,
    main_only,
    obeying,
    of,
    params,
    size,
    snapshot,
    values,
    with_main,
)

rates = st.floats(min_value=0.0, max_value=20_000.0)
queues = st.floats(min_value=0.0, max_value=200_000.0)


def test_more_load_adds_replicas_after_the_short_delay():
    p = params()
    _, results, target = obeying(p, ticks=10, rate=1500.0)
    assert target == 2
    first = next(i for i, r in enumerate(results) if values([r]))
    assert first * p.tick_s == p.scaling.up_delay_s


def test_less_load_removes_replicas_after_the_long_delay_only():
    p = params()
    _, results, target = obeying(p, ticks=60, target=2, rate=100.0)
    assert values(results) == []
    _, results, target = obeying(p, ticks=70, target=2, rate=100.0)
    assert (values(results), target) == ([1], 1)


def test_zero_traffic_goes_to_the_minimum():
    _, _, target = obeying(params(), ticks=400, target=4, rate=0.0)
    assert target == 1


def test_zero_traffic_goes_to_zero_where_allowed_but_later():
    p = params(minimum=0)
    _, results, target = obeying(p, ticks=200, rate=0.0)
    assert target == 1  # 400 s: past the down delay, before the delay to zero
    _, results, target = obeying(p, ticks=310, rate=0.0)
    assert (values(results), target) == ([0], 0)


def test_never_to_zero_with_traffic():
    _, results, target = obeying(params(minimum=0), ticks=1000, rate=0.5)
    assert (values(results), target) == ([], 1)


@given(rates, st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_constant_load_settles_with_monotone_moves_and_then_rests(rate, target):
    p = params(scaling=ScalingParams(down_delay_s=20.0, to_zero_delay_s=20.0))
    state, results, target = obeying(p, ticks=80, target=target, rate=rate)
    moves = values(results)
    assert moves == sorted(moves) or moves == sorted(moves, reverse=True)
    _, after, _ = obeying(p, ticks=200, start_s=160.0, target=target, rate=rate, state=state)
    assert values(after) == []


def test_survivors_must_stay_under_the_down_utilisation():
    # Two replicas at 65 %: one would carry 130 %. Three at 45 %: two would carry 67.5 % > 60 %.
    for target, rate in ((2, 1300.0), (3, 1350.0)):
        _, results, _ = obeying(params(), ticks=200, target=target, rate=rate)
        assert values(results) == []
    # Three at 39 %: two carry 58.5 %.
    _, results, _ = obeying(params(), ticks=200, target=3, rate=1170.0)
    assert values(results) == [2]


def test_a_backlog_forbids_scaling_down():
    p = params()
    # 1.5 s of service of the two ready replicas; arrivals alone would need one.
    few_ready = [
        snapshot(
            2.0 * i,
            [size(2.0 * i, target=4, ready=2, pending=2)],
            [load(2.0 * i, rate=100.0, queued=3000.0)],
        )
        for i in range(200)
    ]
    _, results = drive(p, few_ready)
    assert values(results) == []
    assert [d.reason for d in of(results, Action.HOLD)] == ["keeps 4 replicas: a backlog is left"]


def test_a_backlog_adds_replicas_although_arrivals_stopped():
    _, _, target = obeying(params(), ticks=5, rate=0.0, flight=8000.0, queued=16_000.0)
    assert target == 4


def test_what_piles_up_before_a_lost_replica_is_back_is_not_load():
    p = params()
    lost = [
        main_only(2.0 * i, target=1, pending=1, rate=100.0, flight=0.0, queued=16_000.0)
        for i in range(20)
    ]
    state, results = drive(p, lost)
    assert values(results) == []
    back = [
        main_only(40.0 + 2.0 * i, target=1, rate=100.0, flight=8000.0, queued=16_000.0)
        for i in range(5)
    ]
    _, results = drive(p, back, state=state)
    assert values(results) == [4]


def test_arrivals_add_replicas_although_the_first_is_still_starting():
    p = params()
    starting = [main_only(2.0 * i, target=1, pending=1, rate=3000.0) for i in range(5)]
    _, results = drive(p, starting)
    assert values(results) == [4]


def test_in_flight_tokens_add_replicas_at_a_low_arrival_rate():
    _, _, target = obeying(params(), ticks=5, rate=10.0, flight=12_000.0)
    assert target == 2


def test_pending_replicas_count_as_capacity():
    p = params()
    waiting = [main_only(2.0 * i, target=2, pending=1, rate=1500.0) for i in range(100)]
    _, results = drive(p, waiting)
    assert values(results) == []


def test_a_request_on_its_way_is_not_repeated_until_it_is_lost():
    p = params(ack_timeout_s=30.0)
    deaf = [main_only(2.0 * i, target=1, rate=1500.0) for i in range(30)]
    _, results = drive(p, deaf)
    asked = [2.0 * i for i, r in enumerate(results) if values([r])]
    assert asked == [4.0, 40.0]  # lost after 30 s, then the up delay again


def test_a_step_is_limited():
    p = params(maximum=20, scaling=ScalingParams(max_step_up=3))
    _, results, _ = obeying(p, ticks=30, rate=9000.0)
    assert values(results) == [4, 7, 10, 12]


def test_down_goes_no_further_than_what_was_wanted_meanwhile():
    p = params(scaling=ScalingParams(max_step_down=3))
    seen = [main_only(2.0 * i, target=4, rate=1500.0 if i == 30 else 100.0) for i in range(62)]
    _, results = drive(p, seen)
    assert values(results) == [3]  # three were wanted once, two minutes are not over since


def test_a_change_by_hand_restarts_the_down_delay():
    p = params()
    state, _, _ = obeying(p, ticks=50, target=2, rate=100.0)
    state, results, _ = obeying(p, ticks=60, start_s=100.0, target=3, rate=100.0, state=state)
    assert values(results) == []
    _, results, _ = obeying(p, ticks=5, start_s=220.0, target=3, rate=100.0, state=state)
    assert values(results) == [2]


@pytest.mark.parametrize("by_hand", [1, 2, 4])
def test_replicas_changed_by_hand_are_reconciled(by_hand):
    p = params()
    state, _, target = obeying(p, ticks=10, rate=2000.0)
    assert target == 3
    state, results, target = obeying(
        p, ticks=100, start_s=20.0, target=by_hand, rate=2000.0, state=state
    )
    # 4 at 50 % would be 3 at 67 % > 60 %: left alone, as it should be.
    assert target == (4 if by_hand == 4 else 3)
    assert all(dict(d.numbers)["base"] == by_hand for d in of(results, Action.SCALE))


def test_hand_changes_beyond_the_bounds_are_brought_back_at_once():
    p = with_main(params(), minimum=2, maximum=4)
    for target, expected in ((20, 4), (0, 2)):
        result = step(ControllerState(), main_only(0.0, target=target, rate=100.0), p)
        assert [d.value for d in result.decisions] == [expected]


@pytest.mark.parametrize(
    "broken",
    [
        lambda t: snapshot(t, [size(t, target=3)], []),
        lambda t: snapshot(t, [size(t, target=3)], [load(t, age=11.0)]),
        lambda t: snapshot(t, [size(t, target=3)], [load(t, rate=math.nan, flight=0.0)]),
        lambda t: snapshot(t, [size(t, target=3, age=11.0)], [load(t)]),
        lambda t: snapshot(t, [], [load(t)]),
        lambda t: snapshot(t, [], []),
    ],
)
def test_unknown_holds_and_says_so_once(broken):
    p = params()
    state, _, _ = obeying(p, ticks=3, target=3, rate=2000.0)
    _, results = drive(p, [broken(6.0 + 2.0 * i) for i in range(500)], state=state)
    assert values(results) == []
    holds = of(results, Action.HOLD)
    assert [h.value for h in holds] == [3]
    assert all(r.desired == {"main": 3} for r in results)


def test_a_pool_never_seen_has_no_desired_number():
    result = step(ControllerState(), snapshot(0.0, [], []), params())
    assert result.desired == {}
    assert result.forecast == {}
    assert result.saturation is None


def test_a_gap_in_the_data_restarts_the_down_delay():
    p = params()
    state, _, _ = obeying(p, ticks=59, target=2, rate=100.0)
    state, _ = drive(p, [main_only(118.0, target=2, age=20.0)], state=state)
    _, results, _ = obeying(p, ticks=60, start_s=120.0, target=2, rate=100.0, state=state)
    assert values(results) == []


def test_a_snapshot_of_an_unknown_or_doubled_pool_is_an_error():
    with pytest.raises(UnknownNameError, match="unknown pool 'light'"):
        step(ControllerState(), snapshot(0.0, [size(0.0, name="light")], []), params())
    with pytest.raises(ConfigError, match="2 times"):
        step(ControllerState(), snapshot(0.0, [], [load(0.0), load(0.0)]), params())


def test_the_same_hold_is_not_repeated():
    _, results, _ = obeying(params(maximum=1), ticks=100, rate=1500.0, flight=0.0)
    assert [d.reason for d in of(results, Action.HOLD)] == ["keeps 1 replicas: at its maximum"]


@given(
    st.tuples(rates, rates),
    st.tuples(queues, queues),
    st.tuples(st.integers(0, 6), st.integers(0, 2)),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_desired_is_monotone_in_load(of_rate, of_queue, of_size, degraded):
    (rate, more), (queued, more_queued), (target, pending) = of_rate, of_queue, of_size
    p = with_main(params(), minimum=1, maximum=6)
    pending = min(pending, target)
    state = ControllerState()
    if degraded:
        state = replace(state, tier=replace(state.tier, tier=Tier.SHORT_OUTPUT))
    light = main_only(0.0, target=target, pending=pending, rate=rate, queued=queued)
    heavy = main_only(
        0.0, target=target, pending=pending, rate=rate + more, queued=queued + more_queued
    )
    assert step(state, light, p).desired["main"] <= step(state, heavy, p).desired["main"]


ticks = st.lists(
    st.tuples(
        st.one_of(st.floats(0.0, 1e5), st.just(math.nan)),
        st.floats(0.0, 1e6),
        st.integers(0, 12),
        st.integers(0, 3),
        st.sampled_from([0.0, 0.0, 0.0, 30.0]),
    ),
    min_size=1,
    max_size=40,
)


@given(ticks, st.integers(0, 3), st.integers(3, 8))
@settings(max_examples=150, deadline=None)
def test_bounds_and_steps_hold_whatever_is_observed(sequence, minimum, maximum):
    p = params(
        minimum=minimum,
        maximum=maximum,
        scaling=ScalingParams(
            up_delay_s=0.0, down_delay_s=5.0, to_zero_delay_s=6.0, max_step_up=2, max_step_down=1
        ),
    )
    state = ControllerState()
    for i, (rate, queued, target, pending, age) in enumerate(sequence):
        now_s = 2.0 * i
        seen = snapshot(
            now_s,
            [size(now_s, target=target, pending=min(pending, target))],
            [load(now_s, rate=rate, flight=0.0, queued=queued, age=age)],
        )
        result = step(state, seen, p)
        state = result.state
        for decision in of([result], Action.SCALE):
            base = dict(decision.numbers)["base"]
            assert minimum <= decision.value <= maximum
            assert decision.reason
            if minimum <= base <= maximum:
                assert -1 <= decision.value - base <= 2
        assert minimum <= result.desired["main"] <= maximum


def test_advice_is_given_once_per_change_and_never_times_out():
    p = params(mode=Mode.ADVISORY)
    _, results = drive(p, [main_only(2.0 * i, target=1, rate=1500.0) for i in range(200)])
    assert values(results) == [2]


def test_step_is_deterministic_and_says_when_to_come_back():
    p = params(light=True)
    seen = snapshot(
        5.0,
        [size(5.0), size(5.0, name="light", target=0)],
        [load(5.0, rate=900.0), load(5.0, name="light")],
    )
    first, second = step(ControllerState(), seen, p), step(ControllerState(), seen, p)
    assert first == second
    assert first.next_tick_s == 5.0 + p.tick_s
    assert first.forecast == {"main": 0.9, "light": 0.0}
    assert first.delivered == {"main": 1.0, "light": 1.0}


def test_a_pool_that_moves_to_another_layout_is_not_scaled():
    def moving(now_s):
        there = main_only(now_s, target=2, rate=50_000.0)
        (pool,) = there.pools
        return replace(there, pools=(replace(pool, moving="it moves to TP2"),))

    _, results = drive(params(), [moving(float(t)) for t in range(0, 60, 2)])
    told = [decision for result in results for decision in result.decisions]
    assert all(d.action is not Action.SCALE for d in told)
    assert "keeps 2 replicas: it moves to TP2" in [d.reason for d in told]
