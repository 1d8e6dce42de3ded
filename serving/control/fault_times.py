"""How soon are faults of replicas noticed, and how soon is what they cost restored?

noticed:   how long it had been frozen, mute or stuck in its start when its restart was decided
restored:  from then until it is gone and as many replicas answer as are asked for

Sums and counts by pool, since the controller began. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from autoscaler.reasons import Action, Reason
from autoscaler.snapshot import ClusterSnapshot, Decision, PoolObservation

# By which number of a decision it is known how long it had been so; the least of them.
_SINCE = {
    Reason.STALLED: ("owed_s", "unstepped_s"),
    Reason.NEVER_REPORTED: ("known_s",),
    Reason.START_TOO_LONG: ("started_s",),
}


class FaultTimes:
    """Counts by pool; see above."""

    def __init__(self) -> None:
        self.noticed: Counter[str] = Counter()
        self.noticed_s: dict[str, float] = {}
        self.restored: Counter[str] = Counter()
        self.restored_s: dict[str, float] = {}
        self._open: dict[tuple[str, str], float] = {}

    def note(self, decisions: Iterable[Decision], snapshot: ClusterSnapshot) -> None:
        """What was decided on a snapshot, and what that says of faults before."""
        for pool in snapshot.pools:
            self._close(pool, now_s=snapshot.now_s)
        for decision in decisions:
            if decision.action is Action.RESTART:
                self._begin(decision, now_s=snapshot.now_s)

    def _begin(self, decision: Decision, *, now_s: float) -> None:
        numbers, pool = dict(decision.numbers), decision.pool
        # Ordered again, it is the same fault.
        if self._open.setdefault((pool, decision.subject), now_s) < now_s:
            return
        names = _SINCE.get(decision.kind)
        if names is not None:
            self.noticed[pool] += 1
            lasted_s = min(numbers[name] for name in names)
            self.noticed_s[pool] = self.noticed_s.get(pool, 0.0) + lasted_s

    def _close(self, pool: PoolObservation, *, now_s: float) -> None:
        there = {replica.replica_id for replica in pool.replicas}
        there |= {replica.replica_id for replica in pool.starting}
        whole = pool.ready >= pool.target and pool.pending == 0
        for (name, subject), since_s in list(self._open.items()):
            if name == pool.pool and whole and subject not in there:
                del self._open[name, subject]
                self.restored[name] += 1
                self.restored_s[name] = self.restored_s.get(name, 0.0) + now_s - since_s
