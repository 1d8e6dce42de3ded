"""One replica's life: it starts, serves, drains or dies. Its work is done by its engines."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from cluster.sim.engine import Engine, Gaps
from cluster.sim.job import Job
from cluster.sim.spec import ReplicaSpec


class Phase(Enum):
    """Where a replica is in its life."""

    STARTING = auto()
    READY = auto()
    DRAINING = auto()
    GONE = auto()


class SimReport(NamedTuple):
    """What a replica says of itself; see `cluster.pool_ledger.Report`."""

    replica_id: str
    sent_s: float
    running: int
    waiting: int
    kv_usage: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    limits: None = None


class Replica:
    """`number` counts replicas of its pool; `created_s` and `ended_s` bound its cost.

    `silent`: it does not report, as it does not if its process is frozen.
    """

    __slots__ = (
        "created_s",
        "ended_s",
        "engines",
        "number",
        "phase",
        "pool",
        "replica_id",
        "report",
        "silent",
        "spec",
    )

    def __init__(
        self, *, pool: str, number: int, spec: ReplicaSpec, now_s: float, gaps: Gaps
    ) -> None:
        self.pool = pool
        self.number = number
        self.replica_id = f"{pool}/{number}"
        self.spec = spec
        self.created_s = now_s
        self.ended_s: float | None = None
        self.phase = Phase.STARTING
        groups = (spec.ranks,) if spec.lockstep else (1,) * spec.ranks
        self.engines = [Engine(spec, ranks=ranks, gaps=gaps) for ranks in groups]
        self.report: SimReport | None = None
        self.silent = False

    @property
    def load(self) -> int:
        """Requests, running and waiting."""
        return sum(engine.load for engine in self.engines)

    @property
    def preemptions(self) -> int:
        """How often a sequence had to give up its cache."""
        return sum(rank.preemptions for engine in self.engines for rank in engine.ranks)

    def engine_for(self, job: Job) -> Engine:
        """Where a new job goes: the engine with the fewest."""
        del job
        engines = self.engines
        return engines[0] if len(engines) == 1 else min(engines, key=lambda e: e.load)

    def engine_of(self, job: Job) -> Engine:
        """Where a job is."""
        return next(e for e in self.engines if any(rank is job.rank for rank in e.ranks))

    def owed_s(self, now_s: float) -> float:
        """How long it has owed a token, a canary's where no request waits, and said none."""
        return min(engine.silent_s(now_s) for engine in self.engines)

    def tell(self, now_s: float) -> SimReport:
        """A report, unless it is silent: then the last one, grown old."""
        if self.report is None or not self.silent:
            running = waiting = used = capacity = prompt_tokens = steps = 0
            output_tokens = 0.0
            for engine in self.engines:
                prompt_tokens += engine.prompt_tokens
                steps += engine.steps_by(now_s)
                for rank in engine.ranks:
                    output_tokens += rank.output_tokens
                    running += rank.running
                    waiting += rank.waiting
                    used += rank.kv.used
                    capacity += rank.kv.capacity
            self.report = SimReport(
                self.replica_id,
                now_s,
                running,
                waiting,
                used / capacity,
                prompt_tokens,
                round(output_tokens),
                steps,
            )
        return self.report
