"""Frozen replicas through `controller.step`: snapshots in, decisions out."""

from dataclasses import replace

import pytest

from autoscaler.reasons import Action
from tests.autoscaler.build import of
from tests.autoscaler.faulty import (
    busy,
    faulty,
    first_restart_s,
    frozen,
    replica,
    restarts,
    run,
    seen,
)


def test_a_replica_that_owes_a_token_and_does_not_step_is_restarted_after_stall_s():
    p = faulty()
    snapshots = [
        seen(t, [frozen(t, "ice", since_s=20), busy(t, "b"), busy(t, "c")]) for t in range(40)
    ]
    results = run(p, snapshots)
    assert {subject for subject, _ in restarts(results)} == {"ice"}
    assert first_restart_s(results) == 20 + p.faults.stall_s
    (first, *_) = of(results, Action.RESTART)
    assert dict(first.numbers)["owed_s"] == p.faults.stall_s


@pytest.mark.parametrize(
    "of_replica",
    [
        lambda t: replica("a", t, steps=t, owed=t),  # steps, and nobody gets a token of it
        lambda t: replica("a", t, steps=5, owed=0.0),  # idle
        lambda t: replica("a", t, steps=5, owed=t % 9),  # slow, and its tokens reach somebody
        lambda t: replica("a", t, steps=5, owed=0.0, age=min(t, 6)),  # its reports are late
    ],
)
def test_busy_idle_and_slow_replicas_are_left_alone(of_replica):
    results = run(faulty(), [seen(t, [of_replica(t)]) for t in range(200)])
    assert restarts(results) == []


def test_a_slow_step_that_ended_makes_the_rule_more_patient_up_to_a_limit():
    p = faulty()

    def pace(t):
        # A step takes 9 s until t = 45; then it freezes.
        return frozen(t, "a", since_s=t - t % 9 if t < 45 else 45, steps=min(t, 45) // 9)

    results = run(p, [seen(t, [pace(t), busy(t, "b"), busy(t, "c")]) for t in range(80)])
    assert first_restart_s(results) == 45 + 2 * 8  # twice the slowest that was seen to end
    impatient = replace(p, faults=replace(p.faults, patience_s=12.0))
    results = run(impatient, [seen(t, [pace(t), busy(t, "b"), busy(t, "c")]) for t in range(80)])
    assert first_restart_s(results) == 45 + 12


def test_one_that_serve_routes_to_and_that_never_reports_is_restarted():
    p = faulty()
    results = run(p, [seen(t, [replica("mute", t, age=None)]) for t in range(40)])
    assert first_restart_s(results) == p.faults.unheard_s
    assert "never reported" in restarts(results)[0][1]


def test_a_device_fault_is_reason_enough_and_is_told():
    results = run(faulty(), [seen(t, [replica("a", t, fault="XID 79")]) for t in range(3)])
    ((subject, reason),) = restarts(results)
    assert subject == "a"
    assert "XID 79" in reason


def test_when_most_look_stalled_it_waits_and_says_so_but_not_for_ever():
    p = faulty()
    snapshots = [seen(t, [frozen(t, name, since_s=0) for name in "abc"]) for t in range(60)]
    results = run(p, snapshots)
    assert first_restart_s(results) == p.faults.stall_s + p.faults.hold_s
    (hold,) = [d for d in of(results, Action.HOLD) if "restarts nothing yet" in d.reason]
    assert "most of the pool" in hold.reason
    at_once = [len(of([result], Action.RESTART)) for result in results]
    assert max(at_once) == p.faults.max_at_once


def test_while_gateways_report_late_nobody_is_judged_but_not_for_ever():
    p = faulty()
    stalled = [
        seen(t, [frozen(t, "a", since_s=0), busy(t, "b"), busy(t, "c")], load_age=4.0)
        for t in range(60)
    ]
    results = run(p, stalled)
    assert first_restart_s(results) == p.faults.stall_s + p.faults.hold_s
    assert any("reports of gateways are late" in d.reason for d in of(results, Action.HOLD))


def test_a_controller_that_was_held_up_itself_looks_again_before_it_judges():
    p = faulty()
    times = [0, 1, 2, 14, 15, 16, 17, 18, 19, 20]  # it stood still for 12 s
    snapshots = [seen(t, [frozen(t, "a", since_s=2), busy(t, "b"), busy(t, "c")]) for t in times]
    results = run(p, snapshots)
    ordered = [t for t, r in zip(times, results, strict=True) if of([r], Action.RESTART)]
    assert ordered == [19]


def test_one_that_is_still_there_is_ordered_again_but_not_at_every_tick():
    p = faulty()
    snapshots = [
        seen(t, [frozen(t, "a", since_s=0), busy(t, "b"), busy(t, "c")]) for t in range(75)
    ]
    results = run(p, snapshots)
    ordered = [i for i, result in enumerate(results) if of([result], Action.RESTART)]
    assert ordered == [10, 40, 70]


def test_a_controller_that_restarted_judges_anew_and_comes_to_the_same():
    p = faulty()
    replicas = lambda t: [frozen(t, "a", since_s=0), busy(t, "b"), busy(t, "c")]  # noqa: E731
    results = run(p, [seen(t, replicas(t)) for t in range(100, 120)])
    assert first_restart_s(results) == p.faults.stall_s
