"""What is remembered of the replacement of a replica that leaks? One per pool at a time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autoscaler.leaks import Leak
from autoscaler.scaling import PoolState
from autoscaler.snapshot import Decision


class Phase(StrEnum):
    """Where a retirement is."""

    SURGE = "surge"
    DRAIN = "drain"
    REPLACE = "replace"


@dataclass(frozen=True, kw_only=True)
class Retirement:
    """One under way. `since_s`: in this phase. `others`: whether others answered at its start.

    `base`: replicas asked for before. `gone_since_s`: since when the replica has been silent.
    `failure`: what had failed to start before, so that a new failure is known.
    """

    leak: Leak
    phase: Phase
    since_s: float
    base: int
    others: bool
    failure: str = ""
    gone_since_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class RetireState:
    """What is remembered of a pool. `rest_until_s`: none begins before. `hold`: last held for."""

    pool: str
    current: Retirement | None = None
    rest_until_s: float = 0.0
    hold: str = ""

    @property
    def left_out(self) -> str:
        """The replica that gets no new requests, empty if all do."""
        current = self.current
        out = current is not None and current.phase is not Phase.SURGE
        return current.leak.replica_id if current is not None and out else ""

    @property
    def keep(self) -> str:
        """Why the pool may not shrink now, empty if it may."""
        return "" if self.current is None else "a replica is being replaced"


@dataclass(frozen=True, kw_only=True)
class Retired:
    """One step: what is remembered, what scaling asks for, and the decisions."""

    state: RetireState
    pool: PoolState
    decisions: tuple[Decision, ...] = ()
