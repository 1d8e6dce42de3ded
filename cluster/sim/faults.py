"""What does a failure do to a replica? Crashes, freezes, hangs and slow steps, in their time.

A frozen replica makes no progress and says nothing; when it has said nothing for `dead_after_s` it
counts as lost, like one that crashed. One that hangs makes no progress either and goes on
reporting, so that only whoever steers can notice. What becomes of its requests is the simulation's
business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cluster.sim.engine import Engine
from cluster.sim.event_log import EventLog
from cluster.sim.failures import NODE, Failure, Fault
from cluster.sim.fleet import Fleet
from cluster.sim.job import NEVER
from cluster.sim.record import Record
from cluster.sim.replica import Phase, Replica


class Faults:
    """Strikes replicas of `fleets`.

    `at`: does something at a time, seconds. `after`: told of an engine that was touched, and when
    it was to wake before. `lose`: takes a replica that is gone.
    """

    def __init__(
        self,
        *,
        fleets: Mapping[str, Fleet],
        record: Record,
        log: EventLog,
        dead_after_s: float,
        at: Callable[..., None],
        after: Callable[[Replica, Engine, float], None],
        lose: Callable[[Replica], None],
    ) -> None:
        self._fleets = fleets
        self._record = record
        self._log = log
        self._dead_after_s = dead_after_s
        self._at = at
        self._after = after
        self._lose = lose

    def strike(self, failure: Failure) -> None:
        """Its time has come."""
        victims, now_s = self._victims(failure), failure.at_s
        if not victims:
            self._record.count(f"failures that hit nobody: {failure.kind.value}")
        for replica in victims:
            self._log.replica(replica.replica_id, failure.kind.value, now_s)
            self._record.count(f"replicas hit: {failure.kind.value}")
            if failure.kind is Fault.CRASH:
                self._lose(replica)
            elif failure.kind is Fault.FREEZE:
                self._freeze(replica, failure)
            elif failure.kind is Fault.HANG:
                self._stop(replica, failure.at_s)
                later_s = failure.at_s + failure.for_s
                self._at(later_s, self._thaw, replica, later_s)
            else:
                self._slow(replica, failure.factor, now_s)
                if failure.for_s < NEVER:
                    later_s = now_s + failure.for_s
                    self._at(later_s, self._slow, replica, 1.0, later_s)

    def _victims(self, failure: Failure) -> list[Replica]:
        """Of a pool, one that has started; of a node, all."""
        if failure.pool != NODE:
            replicas = self._fleets[failure.pool].replicas.values()
            wanted = [replica for replica in replicas if replica.number == failure.number]
            return [replica for replica in wanted if replica.phase is not Phase.STARTING]
        return [
            replica
            for fleet in self._fleets.values()
            for replica in fleet.replicas.values()
            if replica.number // fleet.setup.replicas_per_node == failure.number
        ]

    def _slow(self, replica: Replica, factor: float, now_s: float) -> None:
        if replica.phase is Phase.GONE:
            return
        for engine in replica.engines:
            before_s = engine.wake_s
            engine.slow_down(factor, now_s)
            self._after(replica, engine, before_s)

    def _freeze(self, replica: Replica, failure: Failure) -> None:
        now_s = failure.at_s
        replica.tell(now_s)  # its last word
        replica.silent = True
        self._stop(replica, now_s)
        if failure.for_s < self._dead_after_s:
            thawed_s = now_s + failure.for_s
            self._at(thawed_s, self._thaw, replica, thawed_s)
        else:
            self._at(now_s + self._dead_after_s, self._lose, replica)

    def _stop(self, replica: Replica, now_s: float) -> None:
        for engine in replica.engines:
            before_s = engine.wake_s
            engine.freeze(now_s)
            self._after(replica, engine, before_s)

    def _thaw(self, replica: Replica, now_s: float) -> None:
        if replica.phase is Phase.GONE:
            return
        replica.silent = False
        for engine in replica.engines:
            engine.thaw(now_s)
            self._after(replica, engine, NEVER)
