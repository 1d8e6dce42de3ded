"""Small values for the tests: one call builds params or a snapshot, everything else by keyword."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autoscaler.controller import ControllerState, StepResult, step
from autoscaler.params import ControllerParams, PoolParams, ScalingParams, TierParams
from autoscaler.reasons import Action
from autoscaler.snapshot import (
    ClusterSnapshot,
    Decision,
    LoadObservation,
    PoolObservation,
)

RATE = 1000.0  # predicted tokens/s of one replica
FLIGHT = 8000.0  # predicted tokens one replica holds


def pool(name="main", *, minimum=1, maximum=4, cold_start_s=20.0):
    return PoolParams(
        pool=name,
        minimum=minimum,
        maximum=maximum,
        capacity_tokens_per_s=RATE,
        capacity_in_flight_tokens=FLIGHT,
        cold_start_s=cold_start_s,
    )


def params(*, minimum=1, maximum=4, light=False, scaling=None, tiers=None, **more):
    pools = (pool(minimum=minimum, maximum=maximum),)
    if light:
        pools += (pool("light", minimum=0, maximum=2),)
    return ControllerParams(
        pools=pools,
        scaling=scaling or ScalingParams(),
        tiers=tiers or TierParams(),
        **more,
    )


def load(now_s, *, name="main", rate=0.0, flight=None, queued=0.0, wait=0.0, age=0.0):
    """`flight` follows from the rate by Little's law where it is not given."""
    return LoadObservation(
        pool=name,
        observed_s=now_s - age,
        arrival_tokens_per_s=rate,
        in_flight_tokens=rate * FLIGHT / RATE if flight is None else flight,
        queued_tokens=queued,
        queued_requests=int(queued > 0),
        oldest_wait_s=wait,
        arrival_work=rate / RATE,
        in_flight_work=(rate * FLIGHT / RATE if flight is None else flight) / RATE,
        queued_work=queued / RATE,
    )


def size(now_s, *, name="main", target=1, ready=None, pending=0, age=0.0):
    ready = target - pending if ready is None else ready
    return PoolObservation(
        pool=name, observed_s=now_s - age, target=target, ready=ready, pending=pending
    )


def snapshot(now_s, sizes: Iterable[PoolObservation], loads: Iterable[LoadObservation]):
    return ClusterSnapshot(now_s=now_s, pools=tuple(sizes), loads=tuple(loads))


def main_only(now_s, *, target=1, pending=0, age=0.0, **of_load):
    return snapshot(
        now_s,
        [size(now_s, target=target, pending=pending, age=age)],
        [load(now_s, **of_load)],
    )


def drive(p: ControllerParams, snapshots, *, state: ControllerState | None = None):
    """(final state, results) of a fixed sequence of snapshots."""
    state = state or ControllerState()
    results: list[StepResult] = []
    for item in snapshots:
        result = step(state, item, p)
        state = result.state
        results.append(result)
    return state, results


def obeying(p: ControllerParams, *, ticks, start_s=0.0, target=1, state=None, **of_load):
    """Main pool under a constant load; its target follows each decision at once, always ready."""
    state = state or ControllerState()
    results: list[StepResult] = []
    for i in range(ticks):
        result = step(state, main_only(start_s + i * p.tick_s, target=target, **of_load), p)
        state = result.state
        results.append(result)
        for decision in result.decisions:
            if decision.action is Action.SCALE:
                target = decision.value
    return state, results, target


def of(results: Iterable[StepResult], action: Action) -> list[Decision]:
    return [d for result in results for d in result.decisions if d.action is action]


def values(results, action=Action.SCALE):
    return [d.value for d in of(results, action)]


def with_main(p: ControllerParams, **changes) -> ControllerParams:
    return replace(p, pools=(replace(p.main, **changes), *p.pools[1:]))
