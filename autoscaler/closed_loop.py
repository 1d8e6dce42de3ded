"""How would two policies have done under the load of a log, each with what its decisions bring?

The arrivals of a log, main pool and light pool together, flow through the fluid pools of
`autoscaler.virtual`, once per policy: replicas start cold, queues form and drain. It is a model of
the pools that were there, and two things of it are of the log: arrivals already shortened or moved
by a tier are taken as they were, and requests that a better policy would have kept from being sent
again come again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from autoscaler.params import MAIN_POOL, ControllerParams
from autoscaler.snapshot import Tier
from autoscaler.virtual import Scenario, VirtualRun, run
from autoscaler.what_if import Change, Run

# Steps of the fluid model in a tick.
_STEPS = 4
FULL = 1.0


@dataclass(frozen=True, kw_only=True)
class Course:
    """How a policy fared.

    `replica_s`: asked for, all pools. `changes`: of targets. `arrived_tokens`: offered to the
    service; `waiting_tokens`: of them those that came while something waited in the main pool's
    line. `full_s`: seconds at a saturation of 1 or more. `degraded_s`: seconds above tier 0.
    """

    duration_s: float = 0.0
    replica_s: float = 0.0
    changes: int = 0
    arrived_tokens: float = 0.0
    waiting_tokens: float = 0.0
    full_s: float = 0.0
    degraded_s: float = 0.0

    def __add__(self, other: Course) -> Course:
        return Course(
            duration_s=self.duration_s + other.duration_s,
            replica_s=self.replica_s + other.replica_s,
            changes=self.changes + other.changes,
            arrived_tokens=self.arrived_tokens + other.arrived_tokens,
            waiting_tokens=self.waiting_tokens + other.waiting_tokens,
            full_s=self.full_s + other.full_s,
            degraded_s=self.degraded_s + other.degraded_s,
        )


def closed_loop(runs: Iterable[Run], change: Change) -> tuple[Course, Course]:
    """How the recorded policy and the changed one fare under the arrivals of the runs.

    A run without any known load counts nowhere.
    """
    recorded, other = Course(), Course()
    for each in runs:
        scenario = scenario_of(each)
        if scenario is not None:
            recorded += _course(run(each.params, scenario), each.params)
            params = change(each.params)
            other += _course(run(params, scenario), params)
    return recorded, other


def scenario_of(recorded: Run) -> Scenario | None:
    """The arrivals of a run as a scenario, held where none are known; None if none ever are."""
    points: list[tuple[float, float]] = []
    for _, tick in recorded.ticks:
        rates = [load.arrival_tokens_per_s for load in tick.snapshot.loads]
        total = sum(rate for rate in rates if rate >= 0.0)  # without NaN
        if any(rate >= 0.0 for rate in rates):
            points.append((tick.snapshot.now_s, total))
    if not points:
        return None
    start_s = recorded.ticks[0][1].snapshot.now_s - recorded.params.tick_s
    times = [time_s - start_s for time_s, _ in points]
    values = [value for _, value in points]

    def offered(time_s: float) -> float:
        # A tick's rate is of the window before it.
        return values[min(bisect_right(times, time_s), len(values) - 1)]

    return Scenario(
        duration_s=times[-1],
        arrival_tokens_per_s=offered,
        dt_s=recorded.params.tick_s / _STEPS,
    )


def _course(played: VirtualRun, params: ControllerParams) -> Course:
    samples = played.samples
    tick_s = params.tick_s
    targets = [sample.target for sample in samples]
    return Course(
        duration_s=len(samples) * tick_s,
        replica_s=sum(sum(target.values()) for target in targets) * tick_s,
        changes=sum(a[pool] != b[pool] for a, b in pairwise(targets) for pool in a),
        arrived_tokens=sum(sample.offered_tokens_per_s for sample in samples) * tick_s,
        waiting_tokens=tick_s
        * sum(
            sample.offered_tokens_per_s
            for sample in samples
            if sample.queued_tokens[MAIN_POOL] > 0.0
        ),
        full_s=tick_s * sum((sample.saturation or 0.0) >= FULL for sample in samples),
        degraded_s=tick_s * sum(sample.tier > Tier.NORMAL for sample in samples),
    )
