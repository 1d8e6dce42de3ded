"""What is one simulation of many, and what is kept of it? A task that travels, and plain numbers.

A task holds all that tells one run from another on the same trace; a summary what a search, a
report or a JSON file needs of its outcome. A task without a summary has failed, and says why. All
are pickled between processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cluster.errors import ConfigError, ShardwiseError
from cluster.sim.driver import Driver
from cluster.sim.histogram import Histogram
from cluster.sim.job import NEVER
from cluster.sim.record import Outcome
from cluster.sim.setup import Setup
from cluster.sim.simulation import Simulation
from cluster.traces.request import TraceRequest
from cluster.traces.scaling import scale_rate

_PREEMPTIONS = "preemptions"


@dataclass(frozen=True, kw_only=True)
class SimTask:
    """One run of a setup on whatever trace there is.

    `concurrency`: so many requests are always in flight, instead of the trace's arrival times.
    `speed_up`: the trace at so many times its rate; `until_s` is not of the trace, but of the run.
    `driver` makes the one who steers, where the task runs; nobody steers without it.
    """

    setup: Setup
    seed: int = 0
    concurrency: int | None = None
    until_s: float = NEVER
    speed_up: float = 1.0
    driver: Callable[[], Driver] | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(
                source="simulation",
                field="concurrency",
                problem=f"is {self.concurrency}, it must be at least 1.",
                fix="leave it out to let requests come when the trace says.",
            )
        if not self.until_s > 0.0:
            raise ConfigError(
                source="simulation",
                field="until_s",
                problem=f"is {self.until_s:g}, it must be more than 0 seconds.",
                fix="leave it out to run until every request is at its end.",
            )
        if not 0.0 < self.speed_up < math.inf:
            raise ConfigError(
                source="simulation",
                field="speed_up",
                problem=f"is {self.speed_up:g}, it must be a finite number above 0.",
                fix="leave it out to let requests come when the trace says.",
            )


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean and percentiles of a quantity in seconds, None without values."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, kw_only=True)
class PoolReplicas:
    """Replicas of a pool that were ready: the most at once, and the mean over the run."""

    most: int
    mean: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A finished simulation in plain numbers, as `Outcome` and `Record` define them.

    `arrived` = `completed` + all `refused` + `unfinished`. Token counts are of completed requests;
    `cached_share` of their prompt tokens came from the prefix cache. `device_hours` and `cost`
    (USD, None without a price) are of all replicas from when they were asked for. `events`: what
    happened to requests and replicas besides, by name.
    """

    arrived: int
    completed: int
    attained: int
    unfinished: int
    refused: Mapping[str, int]
    attainment: float
    goodput_rps: float
    completed_rps: float
    output_tokens_per_s: float
    duration_s: float
    ttft_s: Spread
    tpot_s: Spread
    itl_s: Spread
    e2e_s: Spread
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    cached_share: float
    preemptions: int
    events: Mapping[str, int]
    device_hours: float
    cost: float | None
    replicas: Mapping[str, PoolReplicas]

    def to_json(self) -> dict[str, Any]:
        """As nested dictionaries of plain values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class TaskFailed:
    """A task without a summary, and why."""

    message: str


Result = Summary | TaskFailed
Run = Callable[[Sequence[SimTask]], list[Result]]  # of tasks on one trace, results in their order


def attempt_task(task: SimTask, requests: Iterable[TraceRequest]) -> Result:
    """`run_task`, where an error meant for users is the task's own failure."""
    try:
        return run_task(task, requests)
    except ShardwiseError as error:
        return TaskFailed(message=str(error))


def run_task(task: SimTask, requests: Iterable[TraceRequest]) -> Summary:
    """Simulate a task on a trace. Raises InputError where its setup or driver does."""
    driver = task.driver() if task.driver is not None else None
    simulation = Simulation(task.setup, driver=driver, seed=task.seed)
    if task.speed_up != 1.0:
        requests = scale_rate(requests, task.speed_up)
    if task.concurrency is None:
        return summarise(simulation.run(requests, until_s=task.until_s))
    return summarise(
        simulation.run_closed(requests, concurrency=task.concurrency, until_s=task.until_s)
    )


def summarise(outcome: Outcome) -> Summary:
    """What is kept of a simulation."""
    record, duration_s = outcome.record, outcome.duration_s
    return Summary(
        arrived=record.arrived,
        completed=record.completed,
        attained=record.attained,
        unfinished=outcome.unfinished,
        refused=dict(sorted(record.refused.items())),
        attainment=outcome.attainment,
        goodput_rps=outcome.goodput_rps,
        completed_rps=record.completed / duration_s if duration_s > 0.0 else 0.0,
        output_tokens_per_s=outcome.output_tokens_per_s,
        duration_s=duration_s,
        ttft_s=_spread(record.ttft),
        tpot_s=_spread(record.tpot),
        itl_s=_spread(record.itl),
        e2e_s=_spread(record.e2e),
        prompt_tokens=record.prompt_tokens,
        output_tokens=record.output_tokens,
        cached_tokens=record.cached_tokens,
        cached_share=record.cached_tokens / record.prompt_tokens if record.prompt_tokens else 0.0,
        preemptions=record.events[_PREEMPTIONS],
        events={name: n for name, n in sorted(record.events.items()) if name != _PREEMPTIONS},
        device_hours=outcome.device_hours,
        cost=outcome.cost,
        replicas={
            pool: PoolReplicas(most=most, mean=mean)
            for pool, (most, mean) in outcome.replicas.items()
        },
    )


def _spread(histogram: Histogram) -> Spread:
    return Spread(
        mean=_known(histogram.mean),
        p50=_known(histogram.quantile(0.50)),
        p90=_known(histogram.quantile(0.90)),
        p95=_known(histogram.quantile(0.95)),
        p99=_known(histogram.quantile(0.99)),
    )


def _known(seconds: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(seconds) else seconds
