"""One pool's gateway: the line, the batch gate, and the books the live dispatcher keeps too."""

from __future__ import annotations

from collections.abc import Callable

from cluster.batching import BatchGate
from cluster.pool_ledger import PoolLedger, ReplicaLimits
from cluster.routers import ROUTERS
from cluster.sim.job import Job
from cluster.sim.setup import GatewayRules
from cluster.waiting_line import Ask, Ticket, WaitingLine


class Front:
    """Jobs on their way to a replica of one pool."""

    def __init__(
        self, *, limits: ReplicaLimits, rules: GatewayRules, draw: Callable[[], float]
    ) -> None:
        line = WaitingLine(limit=rules.max_queued, delays_s=rules.delays_s)
        choose = ROUTERS[rules.router]()
        self.ledger = PoolLedger(limits=limits, line=line, draw=draw, choose=choose)
        self.gate = BatchGate(wait_s=rules.batch_wait_s, tokens=rules.batch_tokens)
        self._holds = rules.batch_wait_s > 0.0
        self._jobs: dict[object, tuple[Job, Ticket]] = {}
        self._held: list[Job] = []
        self._fresh: list[Job] = []

    @property
    def waiting(self) -> int:
        """Jobs in line or held."""
        return len(self._jobs) + len(self._held)

    def waits(self, job: Job) -> bool:
        """Whether the job is in line or held."""
        return job.ticket in self._jobs or job in self._held

    def join(self, job: Job, now_s: float) -> bool:
        """Into the batch that forms, or straight into the line; whether a batch has begun.

        Call `place` afterwards, and when a batch that has begun is due.
        """
        if self._holds and not self.ledger.has_idle(now_s):
            self.gate.hold(job.load, now_s)
            self._held.append(job)
            return len(self._held) == 1
        self._put(job, now_s)
        return False

    def place(self, now_s: float) -> list[tuple[Job, str]]:
        """Who goes to which replica now."""
        if self._held and self.gate.opens(now_s, idle=self.ledger.has_idle(now_s)):
            self.gate.empty()
            held, self._held = self._held, []
            for job in held:
                self._put(job, now_s)
        if not self._jobs:
            return []
        return [
            (self._jobs.pop(ticket.order)[0], replica_id)
            for ticket, replica_id in self.ledger.place(now_s)
        ]

    def left_waiting(self) -> list[Job]:
        """Jobs that came into the line since the last call, and are still there."""
        fresh, self._fresh = self._fresh, []
        return [job for job in fresh if job.ticket in self._jobs]

    def leave(self, job: Job) -> None:
        """The job waits no longer."""
        if job in self._held:
            self._held.remove(job)
            return
        assert isinstance(job.ticket, int)
        self.ledger.line.leave(self._jobs.pop(job.ticket)[1])

    def _put(self, job: Job, now_s: float) -> None:
        ask = Ask(
            priority=job.priority, tokens=job.load, arrived_s=job.arrival_s, failed=job.failed
        )
        ticket = self.ledger.line.put(ask, now_s=now_s)
        job.ticket = ticket.order
        self._jobs[ticket.order] = (job, ticket)
        self._fresh.append(job)
