"""A pool's replicas: which there are, how many shall be, and who goes when there are too many."""

from __future__ import annotations

from collections.abc import Callable

from cluster.sim.engine import Gaps
from cluster.sim.replica import Phase, Replica, SimReport
from cluster.sim.setup import PoolSetup


class Fleet:
    """Replicas of one pool. `on_start`: told of each new one and when it will be ready."""

    def __init__(
        self, setup: PoolSetup, *, gaps: Gaps, on_start: Callable[[Replica, float], None]
    ) -> None:
        self.setup = setup
        self.name = setup.name
        self.target = 0
        self._device_s = 0.0  # of replicas that are gone, as are the preemptions
        self._preemptions = 0
        self.most_ready = 0
        self._gaps = gaps
        self._on_start = on_start
        self._numbers = 0
        self._ready_since_s = 0.0
        self._ready_s = 0.0
        self.replicas: dict[str, Replica] = {}

    @property
    def ready(self) -> list[Replica]:
        """Those that serve."""
        return [r for r in self.replicas.values() if r.phase is Phase.READY]

    @property
    def starting(self) -> list[Replica]:
        """Those that do not yet."""
        return [r for r in self.replicas.values() if r.phase is Phase.STARTING]

    def reports(self, now_s: float, *, forget_s: float) -> list[SimReport]:
        """What those that serve say, leaving out what is too old."""
        return [r for r in self.last_reports(now_s) if now_s - r.sent_s <= forget_s]

    def last_reports(self, now_s: float) -> list[SimReport]:
        """What those that serve said last, however old."""
        return [replica.tell(now_s) for replica in self.ready]

    def owed_s(self, now_s: float) -> dict[str, float]:
        """How long those that serve have owed a token, those that owe one."""
        owed = ((replica.replica_id, replica.owed_s(now_s)) for replica in self.ready)
        return {replica_id: owed_s for replica_id, owed_s in owed if owed_s > 0.0}

    def begin(self, now_s: float) -> None:
        """The replicas there are at first, ready at once."""
        self.target = self.setup.replicas
        for _ in range(self.target):
            self._on_start(self._new(now_s), now_s)

    def set_target(self, replicas: int, now_s: float) -> list[Replica]:
        """Ask for a number; those that have to go, started ones draining."""
        self.target = max(0, replicas)
        starting, ready = self.starting, self.ready
        missing = self.target - len(starting) - len(ready)
        for _ in range(missing):
            self._on_start(self._new(now_s), now_s + self.setup.spec.start_s)
        if missing >= 0:
            return []
        leaving = list(reversed(starting))[:-missing]
        left = -missing - len(leaving)
        leaving += sorted(ready, key=lambda r: (r.load, -r.number))[:left]
        for replica in leaving:
            if replica.phase is Phase.READY:
                self.count_ready(now_s)
            replica.phase = Phase.DRAINING
        return leaving

    def make_ready(self, replica: Replica, now_s: float) -> None:
        """A replica has started."""
        self.count_ready(now_s)
        replica.phase = Phase.READY
        self.most_ready = max(self.most_ready, len(self.ready))

    def end(self, replica: Replica, now_s: float) -> None:
        """A replica is no more."""
        if replica.phase is Phase.READY:
            self.count_ready(now_s)
        replica.phase = Phase.GONE
        replica.ended_s = now_s
        self._device_s += (now_s - replica.created_s) * self.setup.spec.devices
        self._preemptions += replica.preemptions
        del self.replicas[replica.replica_id]

    def device_seconds(self, now_s: float) -> float:
        """Devices times seconds of all replicas there ever were, until `now_s`."""
        there = sum(now_s - replica.created_s for replica in self.replicas.values())
        return self._device_s + there * self.setup.spec.devices

    @property
    def all_preemptions(self) -> int:
        """Of all replicas there ever were."""
        there = sum(replica.preemptions for replica in self.replicas.values())
        return self._preemptions + there

    def count_ready(self, now_s: float) -> None:
        """Add up ready replicas over time, before their number changes."""
        self._ready_s += len(self.ready) * (now_s - self._ready_since_s)
        self._ready_since_s = now_s

    def mean_ready(self, now_s: float) -> float:
        """Ready replicas on average until `now_s`."""
        self.count_ready(now_s)
        return self._ready_s / now_s if now_s > 0.0 else float(len(self.ready))

    def _new(self, now_s: float) -> Replica:
        replica = Replica(
            pool=self.name,
            number=self._numbers,
            spec=self.setup.spec,
            now_s=now_s,
            gaps=self._gaps,
        )
        self._numbers += 1
        self.replicas[replica.replica_id] = replica
        return replica
