"""Who decides while a simulation runs? The questions it asks, and the answer when nobody steers.

`autoscaler.simulated` answers with the live controller and the live tiers; the rest of the
simulator does not know that there is a controller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from cluster.pool_ledger import Traffic
from cluster.sim.replica import SimReport
from cluster.traces.request import TraceRequest


class Admission(NamedTuple):
    """What becomes of a request: its pool, its output limit, and what was changed.

    `refused`: why it is not served, empty if it is. `output_cap`: the output limit that a tier has
    set, None if it has set none; unlike `limit` it tells nothing of how long the answer will be.
    """

    pool: str
    limit: int
    changes: tuple[str, ...] = ()
    refused: str = ""
    output_cap: int | None = None


@dataclass(frozen=True, kw_only=True)
class PoolFacts:
    """A pool as it can be observed from outside at a tick.

    `reports`: of all that serve; one that has fallen silent is known by its last. `owed_s`: how
    long those that owe a token have owed one, seconds, by replica.
    """

    name: str
    target: int
    ready: int
    pending: int
    reports: Sequence[SimReport]
    traffic: Traffic
    owed_s: Mapping[str, float] = field(default_factory=dict)


class Orders(NamedTuple):
    """What shall be done: replicas that pools shall have, for those that change; whom to replace.

    `restarts`: ids of replicas that are ended at once; their pools start others.
    """

    sizes: Mapping[str, int]
    restarts: Sequence[str] = ()


class Driver(Protocol):
    """Decides for the gateway and the cluster. `tick_s`: seconds between ticks."""

    @property
    def tick_s(self) -> float: ...  # noqa: D102

    def admit(self, request: TraceRequest) -> Admission:
        """Where a request goes, and what is left of it."""

    def tick(self, facts: Sequence[PoolFacts], now_s: float) -> Orders:
        """What is to be done now."""

    def gauges(self) -> Mapping[str, float]:
        """Numbers to draw over time."""


class Unsteered:
    """Everything goes to one pool, and nothing changes."""

    def __init__(self, pool: str, *, tick_s: float = 1.0) -> None:
        self._pool = pool
        self._tick_s = tick_s

    @property
    def tick_s(self) -> float:
        """See `Driver`."""
        return self._tick_s

    def admit(self, request: TraceRequest) -> Admission:
        """See `Driver`."""
        return Admission(self._pool, request.output_tokens)

    def tick(self, facts: Sequence[PoolFacts], now_s: float) -> Orders:
        """See `Driver`."""
        del facts, now_s
        return Orders({})

    def gauges(self) -> Mapping[str, float]:
        """See `Driver`."""
        return {}
