"""Faults: how long until they are noticed, and until as many replicas answer as are asked for."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.reasons import Action, Reason
from autoscaler.snapshot import ClusterSnapshot, Decision, ReplicaObservation
from serving.control.fault_times import FaultTimes
from tests.autoscaler.build import main_only

STALLED = Decision(
    action=Action.RESTART,
    pool="main",
    value=1,
    kind=Reason.STALLED,
    reason="it owes a token",
    numbers=(("owed_s", 12.0), ("unstepped_s", 11.0)),
    subject="a",
)


def seen(now_s: float, *replicas: str, target: int = 2, pending: int = 0) -> ClusterSnapshot:
    snapshot = main_only(now_s)
    (pool,) = snapshot.pools
    there = tuple(
        ReplicaObservation(replica_id=name, observed_s=now_s, running=0, waiting=0, kv_usage=0.0)
        for name in replicas
    )
    pool = replace(pool, target=target, ready=len(replicas), pending=pending, replicas=there)
    return replace(snapshot, pools=(pool,))


def test_a_stall_is_restored_when_the_struck_is_gone_and_as_many_answer() -> None:
    times = FaultTimes()
    times.note([STALLED], seen(100.0, "a", "b"))
    assert (times.noticed["main"], times.noticed_s["main"]) == (1, 11.0)
    times.note([], seen(101.0, "a", "b"))  # it has not been ended yet
    times.note([], seen(102.0, "b", pending=1))
    assert times.restored["main"] == 0
    times.note([], seen(120.0, "b", "c"))
    assert (times.restored["main"], times.restored_s["main"]) == (1, 20.0)


def test_what_is_ordered_again_is_the_same_fault() -> None:
    times = FaultTimes()
    times.note([STALLED], seen(100.0, "a", "b"))
    times.note([STALLED], seen(130.0, "a", "b"))
    times.note([], seen(150.0, "b", "c"))
    assert (times.noticed["main"], times.restored_s["main"]) == (1, 50.0)


def test_a_device_fault_is_noticed_by_others_and_restored_by_us() -> None:
    times = FaultTimes()
    faulty = replace(STALLED, kind=Reason.DEVICE_FAULT, numbers=())
    times.note([faulty], seen(100.0, "a"))
    times.note([], seen(130.0, "b", "c"))
    assert (times.noticed["main"], times.restored["main"]) == (0, 1)
