"""Snapshots with faulty replicas and failing starts, for the tests of both rules."""

from __future__ import annotations

import math

from autoscaler.controller import ControllerState, step
from autoscaler.fault_params import FaultParams
from autoscaler.reasons import Action
from autoscaler.snapshot import (
    ClusterSnapshot,
    PoolObservation,
    ReplicaObservation,
    StartingReplica,
)
from tests.autoscaler.build import load, of, params

TICK_S = 1.0


def replica(name, now_s, *, steps=0, owed=0.0, age=0.0, fault=""):
    return ReplicaObservation(
        replica_id=name,
        observed_s=math.nan if age is None else now_s - age,
        running=0,
        waiting=0,
        kv_usage=0.0,
        steps=steps,
        owed_s=owed,
        device_fault=fault,
    )


def seen(now_s, replicas=(), *, target=None, load_age=0.0, **more):
    """A snapshot of main: these answer, and it is as large as was asked for."""
    count = len(replicas)
    target = count if target is None else target
    pool = PoolObservation(
        pool="main",
        observed_s=now_s,
        target=target,
        ready=count,
        pending=max(0, target - count),
        replicas=tuple(replicas),
        **more,
    )
    calm = load(now_s, rate=300.0 * count, age=load_age)
    return ClusterSnapshot(now_s=now_s, pools=(pool,), loads=(calm,))


def faulty(minimum=1, maximum=8, **more):
    return params(minimum=minimum, maximum=maximum, tick_s=TICK_S, faults=FaultParams(**more))


def run(p, snapshots):
    state, results = ControllerState(), []
    for snapshot in snapshots:
        result = step(state, snapshot, p)
        state = result.state
        results.append(result)
    return results


def frozen(now_s, name, *, since_s, steps=5):
    """A replica that has owed a token since then, and makes no step."""
    return replica(name, now_s, steps=steps, owed=max(0.0, now_s - since_s))


def busy(now_s, name):
    """One that owes as much, and steps."""
    return replica(name, now_s, steps=int(10 * now_s), owed=now_s)


def restarts(results):
    return [(d.subject, d.reason) for d in of(results, Action.RESTART)]


def first_restart_s(results):
    return next(i * TICK_S for i, r in enumerate(results) if of([r], Action.RESTART))


def starts(now_s, *names, since_s=None):
    begun = now_s if since_s is None else since_s
    return tuple(StartingReplica(replica_id=name, since_s=begun) for name in names)
