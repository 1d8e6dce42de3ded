"""One pool's gateway: the line, and the books the live dispatcher keeps too."""

from __future__ import annotations

from collections.abc import Callable

from cluster.batching import BatchRules
from cluster.engine_work import EngineWork
from cluster.lengths.features import LengthFeatures, openings_of_blocks
from cluster.lengths.predictors import PREDICTORS
from cluster.pool_ledger import PoolLedger, ReplicaLimits
from cluster.prefix_index import PrefixIndex
from cluster.routers import ROUTERS
from cluster.routing import predicted_tokens
from cluster.sim.job import NEVER, Job
from cluster.sim.setup import GatewayRules
from cluster.traces.request import TraceRequest
from cluster.waiting_line import Ask, Ticket, WaitingLine

_MOST_BLOCKS = 20_000  # of a trace's: more than a cache holds


class Front:
    """Jobs on their way to a replica of one pool. `lengths`: who predicts their answers'."""

    def __init__(
        self,
        *,
        limits: ReplicaLimits,
        work: EngineWork,
        rules: GatewayRules,
        draw: Callable[[], float],
    ) -> None:
        self._work = work
        line = WaitingLine(limit=rules.max_queued, delays_s=rules.delays_s)
        choose = ROUTERS[rules.router]()
        batches = BatchRules(wait_s=rules.batch_wait_s, tokens=rules.batch_tokens)
        self.ledger = PoolLedger(
            limits=limits,
            line=line,
            draw=draw,
            choose=choose,
            batches=batches,
            vip_slots=rules.vip_slots,
            prefixes=PrefixIndex(most_blocks=_MOST_BLOCKS) if rules.prefix_affinity else None,
        )
        self.lengths = PREDICTORS[rules.length_predictor](rules.expected_output)
        self._jobs: dict[object, tuple[Job, Ticket]] = {}
        self._fresh: list[Job] = []
        self._due_s = NEVER

    @property
    def waiting(self) -> int:
        """Jobs in line."""
        return len(self._jobs)

    def waits(self, job: Job) -> bool:
        """Whether the job is in line."""
        return job.ticket in self._jobs

    def load_of(self, asked: LengthFeatures) -> tuple[float, float]:
        """Predicted tokens and engine-seconds of a request."""
        output, prompt = self.lengths.predict(asked), asked.prompt_tokens
        return (
            predicted_tokens(prompt_tokens=prompt, output_tokens=output),
            self._work.of(prompt_tokens=prompt, output_tokens=output),
        )

    def join(self, job: Job, now_s: float) -> None:
        """Into the line; call `place` afterwards."""
        ask = Ask(
            priority=job.priority,
            tokens=job.load,
            arrived_s=job.arrival_s,
            failed=job.failed,
            prefix=job.blocks,
            work=job.work,
        )
        ticket = self.ledger.line.put(ask, now_s=now_s)
        job.ticket = ticket.order
        self._jobs[ticket.order] = (job, ticket)
        self._fresh.append(job)

    def place(self, now_s: float) -> list[tuple[Job, str]]:
        """Who goes to which replica now."""
        if not self._jobs:
            return []
        return [
            (self._jobs.pop(ticket.order)[0], replica_id)
            for ticket, replica_id in self.ledger.place(now_s)
        ]

    def due_s(self, now_s: float) -> float | None:
        """When a batch that forms has to be looked at again, if nobody has been told yet."""
        due_s = self.ledger.due_s(now_s)
        if due_s in (self._due_s, NEVER):
            return None
        self._due_s = due_s
        return due_s

    def left_waiting(self) -> list[Job]:
        """Jobs that came into the line since the last call, and are still there."""
        fresh, self._fresh = self._fresh, []
        return [job for job in fresh if job.ticket in self._jobs]

    def leave(self, job: Job) -> None:
        """The job waits no longer."""
        assert isinstance(job.ticket, int)
        self.ledger.line.leave(self._jobs.pop(job.ticket)[1])


def asked_of(request: TraceRequest, *, limit: int | None, room: int) -> LengthFeatures:
    """What a gateway can know of a request's length; traces tell no limits of their own."""
    return LengthFeatures(
        prompt_tokens=request.prompt_tokens,
        limit=limit,
        room=room,
        openings=openings_of_blocks(request.blocks, request.block_tokens),
    )
