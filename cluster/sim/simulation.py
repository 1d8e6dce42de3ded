"""What happens to a stream of requests? Arrivals, gateway, replicas, faults, in order of time.

Discrete events from a heap; between them engines skip ahead (`cluster.sim.engine`). Times are in
seconds from the start of the trace. Everything random comes from one seeded generator, and events
of one time keep the order in which they were made: the same seed gives the same log.

Conserved: every request that came is completed, refused with a reason, broken, or unfinished at
the end; a replica's blocks are those of its jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import count

import numpy as np

from cluster.engine_work import turned_over
from cluster.lengths.features import LengthFeatures
from cluster.sim.driver import Driver, PoolFacts, Unsteered
from cluster.sim.engine import Engine
from cluster.sim.event_log import NO_LOG, EventLog
from cluster.sim.faults import Faults
from cluster.sim.fleet import Fleet
from cluster.sim.front import Front, asked_of
from cluster.sim.job import NEVER, Job
from cluster.sim.outcome import outcome_of
from cluster.sim.record import Outcome, Record
from cluster.sim.replica import Phase, Replica
from cluster.sim.setup import Setup
from cluster.sim.spec import Role
from cluster.traces.request import TraceRequest

_DRAWS = 4096
Knows = Callable[..., LengthFeatures]
Event = tuple[float, int, Callable[..., None], tuple[object, ...]]


class Simulation:
    """One run of one setup. `driver`: who steers; nobody by default. `log`: told of every event.

    `knows`: what of a request the gateway predicts its length from (see `asked_of`). Use it once:
    `run` or `run_closed`.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        driver: Driver | None = None,
        seed: int = 0,
        log: EventLog = NO_LOG,
        keep: bool = False,
        knows: Knows = asked_of,
    ) -> None:
        self._setup = setup
        self._knows = knows
        self._rules = setup.gateway
        self._driver = driver if driver is not None else Unsteered(setup.pools[0].name)
        self._log = log
        self.record = Record(setup.slo, keep=keep)
        self._random = np.random.default_rng(seed)
        self._draws: list[float] = []
        self._heap: list[Event] = []
        self._order = count()
        self._numbers = count()
        self._inside = 0  # requests that came and are not yet at an end
        self._arrivals: Iterator[TraceRequest] = iter(())
        self._more = True
        self._concurrency = 0
        self.now_s = 0.0
        self._fleets = {
            pool.name: Fleet(pool, gaps=self.record.itl.add, on_start=self._expect)
            for pool in setup.pools
        }
        self._fronts = {
            pool.name: Front(
                limits=pool.limits,
                work=pool.work or turned_over(pool.limits.max_tokens),
                rules=self._rules,
                draw=self._draw,
            )
            for pool in setup.pools
        }
        self._decoders = next((p.name for p in setup.pools if p.spec.role is Role.DECODE), "")

    def run(self, requests: Iterable[TraceRequest], *, until_s: float = NEVER) -> Outcome:
        """Requests come when the trace says; the run ends with the last, or at `until_s`."""
        self._arrivals = iter(requests)
        self._begin()
        self._next_arrival()
        return self._loop(until_s)

    def run_closed(
        self, requests: Iterable[TraceRequest], *, concurrency: int, until_s: float = NEVER
    ) -> Outcome:
        """`concurrency` requests are always in flight; the trace's arrival times are not used."""
        self._arrivals = iter(requests)
        self._concurrency = concurrency
        self._begin()
        for _ in range(concurrency):
            self._issue_next()
        return self._loop(until_s)

    # The loop

    def _begin(self) -> None:
        for fleet in self._fleets.values():
            fleet.begin(0.0)
        faults = Faults(
            fleets=self._fleets,
            record=self.record,
            log=self._log,
            dead_after_s=self._setup.health.dead_after_s,
            at=self._at,
            after=self._after,
            lose=self._lose,
        )
        for failure in self._setup.failures:
            self._at(failure.at_s, faults.strike, failure)
        self._tick()

    def _loop(self, until_s: float) -> Outcome:
        heap = self._heap
        while heap and (self._more or self._inside):
            at_s, _, act, arguments = heappop(heap)
            if at_s > until_s:
                break
            self.now_s = at_s
            act(*arguments)
        ended_s = min(self.now_s, until_s)
        return outcome_of(self.record, self._fleets, ended_s, unfinished=self._inside)

    def _at(self, at_s: float, act: Callable[..., None], *arguments: object) -> None:
        heappush(self._heap, (at_s, next(self._order), act, arguments))

    def _draw(self) -> float:
        if not self._draws:
            self._draws = self._random.random(_DRAWS).tolist()
        return self._draws.pop()

    # Requests

    def _next_arrival(self) -> None:
        request = next(self._arrivals, None)
        if request is None:
            self._more = False
        else:
            self._at(request.arrival_s, self._arrive_open, request)

    def _arrive_open(self, request: TraceRequest) -> None:
        self._next_arrival()
        self._arrive(request)

    def _issue_next(self) -> None:
        request = next(self._arrivals, None)
        if request is None:
            self._more = False
        else:
            self._arrive(request)

    def _arrive(self, request: TraceRequest) -> None:
        now_s, record = self.now_s, self.record
        record.arrive(now_s)
        self._inside += 1
        admission = self._driver.admit(request)
        pool = admission.pool
        front, spec = self._fronts[pool], self._fleets[pool].setup.spec
        job = Job(
            number=next(self._numbers),
            arrival_s=now_s,
            prompt=request.prompt_tokens,
            limit=admission.limit,
            priority=request.priority,
            blocks=request.blocks,
            block_tokens=request.block_tokens,
        )
        job.pool = pool
        room = max(1, self._fleets[pool].setup.max_context - job.prompt)
        job.lengths = front.lengths
        job.asked = self._knows(request, limit=None, room=room)
        job.load, job.work = front.load_of(job.asked)
        front.ledger.arrived(job.load, job.work, now_s)
        for change in admission.changes:
            record.count(change)
        if admission.output_cap is not None:
            job.asked = self._knows(request, limit=admission.output_cap, room=room)
            job.load, job.work = front.load_of(job.asked)
        if admission.refused:
            self._refuse(job, admission.refused)
        elif job.prompt + job.limit > self._fleets[pool].setup.max_context:
            self._refuse(job, "longer than the model's context")
        elif not spec.holds(job.prompt, job.limit):
            self._refuse(job, "longer than the KV cache")
        elif front.ledger.line.full_for(job.priority):
            self._refuse(job, "the line is full")
        else:
            self._join(job, front)

    def _join(self, job: Job, front: Front) -> None:
        front.join(job, self.now_s)
        self._place(front)

    def _place(self, front: Front) -> None:
        if not front.waiting:
            return
        for job, replica_id in front.place(self.now_s):
            job.ticket = None
            self._dispatch(job, self._fleets[job.pool].replicas[replica_id])
        for job in front.left_waiting():
            self._at(self.now_s + self._rules.queue_wait_s, self._give_up, job, job.attempts)
        due_s = front.due_s(self.now_s)
        if due_s is not None:
            self._at(due_s, self._place, front)

    def _dispatch(self, job: Job, replica: Replica) -> None:
        now_s = self.now_s
        job.replica = replica
        job.attempts += 1
        engine = replica.engine_for(job)
        before_s = engine.wake_s
        engine.submit(job, now_s)
        self._log.dispatched(job, replica.replica_id, now_s)
        if engine.wake_s != before_s:
            self._at(engine.wake_s, self._wake, replica, engine, engine.wake_s)
        if job.queued and len(self._fleets[job.pool].replicas) > 1:
            check_s = now_s + self._rules.reschedule_after_s
            if check_s < NEVER and job.moves < self._rules.max_moves:
                self._at(check_s, self._reconsider, job, job.attempts)

    def _wake(self, replica: Replica, engine: Engine, due_s: float) -> None:
        if engine.wake_s != due_s or replica.phase is Phase.GONE:
            return  # it was changed since
        engine.wake(due_s)
        self._after(replica, engine, due_s)

    def _after(self, replica: Replica, engine: Engine, before_s: float) -> None:
        """Hand on what an engine has got done, and remember when to look at it again."""
        if engine.first:
            for job in engine.first:
                self._first(job, replica, engine)
            engine.first.clear()
        if engine.handed:
            handed, engine.handed = engine.handed, []
            for job in handed:
                self._hand_over(job, replica)
        if engine.done:
            done, engine.done = engine.done, []
            for job in done:
                self._finish(job, replica)
        wake_s = engine.wake_s
        if wake_s != before_s and wake_s != NEVER:  # noqa: PLR1714  this is where time is spent
            heappush(self._heap, (wake_s, next(self._order), self._wake, (replica, engine, wake_s)))
        if replica.phase is Phase.DRAINING and not replica.load:
            self._fleets[replica.pool].end(replica, self.now_s)

    def _first(self, job: Job, replica: Replica, engine: Engine) -> None:
        job.lag_s = replica.spec.times.lag_s(job.prompt - job.cached, job.chunks)
        if replica.spec.lag_steps:
            job.lag_s += replica.spec.lag_steps * engine.step_beside_s
        self._log.first(job, replica.replica_id, self.now_s)

    def _finish(self, job: Job, replica: Replica) -> None:
        now_s, front = self.now_s, self._fronts[job.pool]
        self.record.finish(job, now_s, replica_id=replica.replica_id)
        self._log.finished(job, replica.replica_id, now_s)
        if job.lengths is not None and job.asked is not None:
            job.lengths.learn(job.asked, job.limit)
        front.ledger.release(replica.replica_id, job.load, job.work)
        self._end(job.lag_s)
        if front.waiting:
            self._place(front)

    def _end(self, later_s: float = 0.0) -> None:
        """A request is at its end, whichever; in a closed loop the next one follows."""
        self._inside -= 1
        if self._concurrency and self._more:
            if later_s > 0.0:
                self._inside += 1  # the place it leaves is taken, a little later
                self._at(self.now_s + later_s, self._follow)
            else:
                self._issue_next()

    def _follow(self) -> None:
        self._inside -= 1
        self._issue_next()

    def _refuse(self, job: Job, reason: str) -> None:
        self.record.refuse(reason, self.now_s)
        self._log.refused(job, reason, self.now_s)
        self._end()

    def _give_up(self, job: Job, attempts: int) -> None:
        front = self._fronts[job.pool]
        if job.attempts == attempts and front.waits(job):
            front.leave(job)
            ready = front.ledger.ready
            self._refuse(job, "waited too long" if ready else "no replica was ready")
            self._place(front)  # those it held replicas against

    def _reconsider(self, job: Job, attempts: int) -> None:
        """Second scheduling: a request that has not started may do better elsewhere."""
        replica = job.replica
        if not job.queued or job.attempts != attempts or not isinstance(replica, Replica):
            return
        now_s, front, fleet = self.now_s, self._fronts[job.pool], self._fleets[job.pool]
        better = front.ledger.better(job.load, replica.replica_id, now_s)
        if better is None or better not in fleet.replicas:
            self._at(now_s + self._rules.reschedule_after_s, self._reconsider, job, attempts)
            return
        engine = replica.engine_of(job)
        before_s = engine.wake_s
        engine.remove(job, now_s)
        self._after(replica, engine, before_s)
        front.ledger.release(replica.replica_id, job.load, job.work)
        front.ledger.take(better, job.load, job.work)
        job.moves += 1
        self.record.count("moved before they started")
        self._log.moved(job, replica.replica_id, now_s)
        self._dispatch(job, fleet.replicas[better])
        self._place(front)

    def _hand_over(self, job: Job, replica: Replica) -> None:
        """A prompt is done: its KV cache travels to a replica that decodes."""
        spec, now_s = replica.spec, self.now_s
        self._fronts[job.pool].ledger.release(replica.replica_id, job.load, job.work)
        moved = (job.prompt + job.generated) * spec.kv_bytes_per_token
        self.record.count("KV caches sent")
        self._log.handed(job, replica.replica_id, now_s)
        self._place(self._fronts[job.pool])
        arrives_s = now_s + spec.transfer_s + moved / spec.transfer_bytes_per_s
        job.lag_s = spec.times.lag_s(job.prompt - job.cached, job.chunks)
        self._at(arrives_s, self._receive, job)

    def _receive(self, job: Job) -> None:
        if job.first_s == NEVER:
            job.first_s = self.now_s
            assert isinstance(job.replica, Replica)
            self._log.first(job, job.replica.replica_id, self.now_s)
        job.pool = self._decoders
        job.target = job.position = job.prompt + job.generated
        self._join(job, self._fronts[job.pool])

    # Replicas

    def _expect(self, replica: Replica, ready_s: float) -> None:
        if ready_s <= self.now_s:
            self._ready(replica)
        else:
            self._at(ready_s, self._ready, replica)

    def _ready(self, replica: Replica) -> None:
        if replica.phase is not Phase.STARTING:
            return
        fleet = self._fleets[replica.pool]
        fleet.make_ready(replica, self.now_s)
        self._log.replica(replica.replica_id, "ready", self.now_s)
        self._report(fleet)

    def _report(self, fleet: Fleet) -> None:
        front = self._fronts[fleet.name]
        front.ledger.observe(fleet.reports(self.now_s, forget_s=self._setup.health.forget_s))
        self._place(front)

    def _tick(self) -> None:
        """Reports come in, and whoever steers decides."""
        now_s = self.now_s
        window = self.record.series.at(now_s)
        forget_s = self._setup.health.forget_s
        facts = []
        for name, fleet in self._fleets.items():
            front = self._fronts[name]
            reports = fleet.last_reports(now_s)
            front.ledger.observe([r for r in reports if now_s - r.sent_s <= forget_s])
            self._place(front)
            ready, pending = len(fleet.ready), len(fleet.starting)
            facts.append(
                PoolFacts(
                    name=name,
                    target=fleet.target,
                    ready=ready,
                    pending=pending,
                    reports=reports,
                    traffic=front.ledger.traffic(now_s),
                    owed_s=fleet.owed_s(now_s),
                )
            )
            for gauge, value in (
                (f"{name} ready", ready),
                (f"{name} queued", front.waiting),
                (f"{name} running", sum(report.running for report in reports)),
                (f"{name} KV usage", max((report.kv_usage for report in reports), default=0.0)),
            ):
                window.gauges[gauge] = max(window.gauges.get(gauge, 0.0), value)
        orders = self._driver.tick(facts, now_s)
        for pool, replicas in orders.sizes.items():
            self._scale(self._fleets[pool], replicas)
        for replica_id in orders.restarts:
            self._restart(replica_id)
        for gauge, value in self._driver.gauges().items():
            window.gauges[gauge] = max(window.gauges.get(gauge, 0.0), value)
        self._at(now_s + self._driver.tick_s, self._tick)

    def _scale(self, fleet: Fleet, replicas: int) -> None:
        leaving = fleet.set_target(replicas, self.now_s)
        for replica in leaving:
            self._log.replica(replica.replica_id, "drains", self.now_s)
            if not replica.load:
                fleet.end(replica, self.now_s)
        if leaving:
            self._report(fleet)

    def _restart(self, replica_id: str) -> None:
        replica = self._fleets[replica_id.partition("/")[0]].replicas.get(replica_id)
        if replica is not None:
            self.record.count("replicas restarted")
            self._lose(replica)

    # Losses

    def _lose(self, replica: Replica) -> None:
        """A replica is gone; what it had goes elsewhere, and its pool starts another."""
        if replica.phase is Phase.GONE:
            return
        now_s = self.now_s
        fleet, front = self._fleets[replica.pool], self._fronts[replica.pool]
        lost = [job for engine in replica.engines for job in engine.halt()]
        lost.sort(key=lambda job: job.number)
        fleet.end(replica, now_s)
        self._log.replica(replica.replica_id, "lost", now_s)
        front.ledger.suspect(replica.replica_id, now_s)
        for job in lost:
            front.ledger.release(replica.replica_id, job.load, job.work)
        front.ledger.observe(fleet.reports(now_s, forget_s=self._setup.health.forget_s))
        fleet.set_target(fleet.target, now_s)
        for job in lost:
            self._recover(job, replica, front)
        self._place(front)

    def _recover(self, job: Job, replica: Replica, front: Front) -> None:
        begun = job.first_s < NEVER
        if begun and not self._rules.resumes:
            self._refuse(job, "broken mid-stream by a lost replica")
        elif job.attempts >= self._rules.attempts:
            self._refuse(job, "lost its replica too often")
        else:
            self.record.count("resumed mid-stream" if begun else "retried elsewhere")
            job.failed = {**job.failed, replica.replica_id: self.now_s}
            job.restart()
            self._join(job, front)
