"""Which processes have outlived their replica, and what is done about each? Pure.

A process whose replica is missing from the roll for a grace period is asked to end, and ended if it
has not after a while. Nothing is concluded from a roll that nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from serving.keeper.processes import Owned

PATIENCE_S = 5.0  # from asking a process to end until it is ended


@dataclass(frozen=True, kw_only=True)
class Orphan:
    """Missing since when, and when it was asked to end."""

    since_s: float
    asked_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Orphans:
    """What is remembered, who is to be asked to end now, and who is to be ended."""

    known: Mapping[Owned, Orphan] = field(default_factory=dict)
    ask: tuple[Owned, ...] = ()
    end: tuple[Owned, ...] = ()


def step_orphans(
    known: Mapping[Owned, Orphan],
    processes: Iterable[Owned],
    living: frozenset[str] | None,
    *,
    now_s: float,
    grace_s: float,
) -> Orphans:
    """One look. `living`: ids of the replicas there are; None: unknown, nothing is done."""
    if living is None:
        return Orphans(known={owned: known[owned] for owned in processes if owned in known})
    found: dict[Owned, Orphan] = {}
    ask: list[Owned] = []
    end: list[Owned] = []
    for owned in processes:
        if owned.replica_id in living:
            continue
        orphan = known.get(owned, Orphan(since_s=now_s))
        if orphan.asked_s is not None:
            if now_s - orphan.asked_s >= PATIENCE_S:
                end.append(owned)
        elif now_s - orphan.since_s >= grace_s:
            orphan = Orphan(since_s=orphan.since_s, asked_s=now_s)
            ask.append(owned)
        found[owned] = orphan
    return Orphans(known=found, ask=tuple(ask), end=tuple(end))
