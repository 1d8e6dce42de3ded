"""Failing starts through `controller.step`: snapshots in, decisions out."""

import math
from dataclasses import replace
from itertools import pairwise

from autoscaler.controller import ControllerState, step
from autoscaler.reasons import Action
from tests.autoscaler.build import load, of, values
from tests.autoscaler.faulty import busy, faulty, first_restart_s, restarts, run, seen, starts


def looping(p, *, ticks, life=2, heals_s=math.inf):
    """Two of three answer; each start of the third dies after `life` ticks until `heals_s`.

    Returns the results and, tick by tick, the number of replicas that were asked for.
    """
    state, results, targets = ControllerState(), [], []
    target, number, age, third = 3, 0, 0, ""
    for t in range(ticks):
        coming = ()
        if target > 2 and not third:
            if age == life:
                number, age, third = number + 1, 0, f"start{number}" if t >= heals_s else ""
            else:
                age += 1
            coming = () if third else starts(t, f"start{number}")
        up = [busy(t, name) for name in ("a", "b", third) if name]
        why = "OSError: no such model"
        result = step(state, seen(t, up, target=target, starting=coming, start_failure=why), p)
        state = result.state
        results.append(result)
        for decision in of([result], Action.SCALE):
            target = decision.value
        targets.append(target)
    return results, targets


def test_a_crash_loop_is_stopped_and_says_why():
    p = faulty(minimum=3)
    results, targets = looping(p, ticks=15)
    assert targets[:8] == [3] * 8 and targets[-1] == 2, "no more than answer"
    (told,) = [d for d in of(results, Action.HOLD) if "no more than answer" in d.reason]
    assert "no such model" in told.reason
    (down,) = of(results, Action.SCALE)
    assert "no such model" in down.reason
    assert "no such model" in results[-1].troubles["main"]


def test_a_crash_loop_is_probed_with_one_at_growing_distances():
    p = faulty(minimum=3, backoff_s=10.0, backoff_max_s=40.0)
    results, targets = looping(p, ticks=400)
    probes = [i for i in range(1, 400) if targets[i] > targets[i - 1]]
    gaps = [b - a for a, b in pairwise(probes)]
    assert gaps[0] < gaps[1] <= max(gaps) <= 40 + 10
    assert len(probes) < 400 / 40 + 4
    assert restarts(results) == []


def test_when_a_probe_answers_everything_is_as_before():
    p = faulty(minimum=3)
    results, targets = looping(p, ticks=120, heals_s=25)
    assert targets[-1] == 3
    assert results[-1].troubles == {}
    assert of(results[-60:], Action.SCALE) == []


def test_a_pool_of_which_nothing_comes_up_is_asked_for_nothing_between_probes():
    p = faulty(minimum=1)
    state, target, targets = ControllerState(), 1, []
    for t in range(40):
        coming = starts(t, f"s{t // 2}") if target else ()
        result = step(state, seen(t, target=target, starting=coming), p)
        state = result.state
        for decision in of([result], Action.SCALE):
            target = decision.value
        targets.append(target)
    assert 0 in targets
    assert 1 in targets[targets.index(0) :], "it is tried again"


def test_the_first_deployment_is_serves_own_business():
    p = faulty(minimum=1)
    snapshots = [
        seen(t, target=1, starting=starts(t, f"s{t // 2}"), deploying=True) for t in range(40)
    ]
    results = run(p, snapshots)
    assert results[-1].troubles == {}
    assert of(results, Action.SCALE) == []


def test_starts_that_a_smaller_target_has_ended_have_not_failed():
    p = faulty(minimum=1, failed_starts=1)
    names = ["s1", "s2"]
    snapshots = [seen(t, [busy(t, "a")], target=3, starting=starts(t, *names)) for t in range(3)]
    snapshots += [seen(3, [busy(3, "a")], target=1, starting=starts(3, *names))]
    snapshots += [seen(t, [busy(t, "a")], target=1) for t in range(4, 10)]
    assert run(p, snapshots)[-1].troubles == {}


def test_a_start_that_answered_and_died_young_counts_as_failed():
    p = faulty(minimum=2, failed_starts=1)
    snapshots = [seen(0, [busy(0, "a")], target=2, starting=starts(0, "s"))]
    snapshots += [seen(t, [busy(t, "a"), busy(t, "s")]) for t in range(1, 8)]
    snapshots += [seen(8, [busy(8, "a")], target=2)]
    assert "fail again" in run(p, snapshots)[-1].troubles["main"]


def test_many_that_one_accident_ends_are_one_failure():
    p = faulty(minimum=4, failed_starts=2)
    many = starts(0, "r", "s", "t")
    snapshots = [seen(0, [busy(0, "a")], target=4, starting=many)]
    snapshots += [seen(1, [busy(1, "a")], target=4, starting=many[:2])]
    snapshots += [seen(2, [busy(2, "a")], target=4, starting=starts(2, "x", "y", "z"))]
    assert run(p, snapshots)[-1].troubles == {}
    again = seen(4, [busy(4, "a")], target=4, starting=starts(4, "u"))
    assert "main" in run(p, [*snapshots, again])[-1].troubles


def test_a_start_that_takes_too_long_is_ended():
    p = faulty(minimum=2, start_limit_s=100.0)
    snapshots = [
        seen(t, [busy(t, "a")], target=2, starting=starts(t, "slow", since_s=5))
        for t in range(0, 110)
    ]
    results = run(p, snapshots)
    assert first_restart_s(results) == 105
    assert [subject for subject, _ in restarts(results)] == ["slow"]


def test_a_placement_that_nobody_can_meet_is_given_back_with_its_words_and_tried_again():
    p = faulty(minimum=3)
    unmet = "one of 2 bundles (8 GPU)"
    first = seen(0, [busy(0, "a")], target=3, starting=starts(0, "s"), unmet=unmet)
    result = step(ControllerState(), first, p)
    (down,) = of([result], Action.SCALE)
    assert down.value == 1
    assert unmet in down.reason
    results = [result]
    state = result.state
    for t in range(1, 15):
        result = step(state, seen(t, [busy(t, "a")], target=1), p)
        state = result.state
        results.append(result)
        if of([result], Action.SCALE):
            break
    assert of([result], Action.SCALE)[0].value == 2


def test_a_replica_may_be_replaced_while_there_is_no_room_for_more():
    p = faulty(minimum=2, backoff_s=100.0)
    full = [seen(0, [busy(0, "a"), busy(0, "b")], target=3, unmet="8 GPU")]
    whole = [seen(t, [busy(t, "a"), busy(t, "b")]) for t in range(1, 5)]
    one = [seen(t, [busy(t, "a")], target=2, starting=starts(t, "c")) for t in range(5, 9)]
    assert values(run(p, [*full, *whole, *one])) == [2]


def test_a_probe_that_nobody_asks_for_ends_by_itself():
    p = faulty(minimum=1, backoff_s=5.0)
    snapshots = [seen(0, [busy(0, "a")], target=2, unmet="8 GPU")]
    snapshots += [seen(t, [busy(t, "a")]) for t in range(1, 40)]
    results = run(p, snapshots)
    assert results[30].troubles
    assert results[-1].troubles == {}


def test_tiers_may_rise_while_nothing_more_can_be_started():
    p = faulty(minimum=1, backoff_s=60.0)
    snapshots = []
    for t in range(40):
        base = seen(t, [busy(t, "a")], target=3 if t < 2 else 1, unmet="8 GPU" if t < 2 else "")
        full = load(t, rate=3000.0, flight=20_000.0, queued=20_000.0)
        snapshots.append(replace(base, loads=(full,)))
    assert run(p, snapshots)[-1].tier > 0
