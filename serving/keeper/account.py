"""What is a keeper told, and what does it answer? Bytes and seconds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Roll:
    """Which replicas there are.

    `living`: ids of all of the application, None if nobody knows: then nothing is ended. `roots`:
    process ids of the Ray actors of each on this node; all other processes descend from them.
    """

    living: frozenset[str] | None
    roots: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ReplicaUse:
    """What a replica uses; of a node, or of all. NaN: unknown. `device_fault`: empty if none."""

    host_bytes: float = math.nan
    device_bytes: float = math.nan
    device_fault: str = ""


@dataclass(frozen=True, kw_only=True)
class Swept:
    """A process that was left of a replica, and was ended. `age_s`: since it was started."""

    pid: int
    name: str
    replica_id: str
    host_bytes: float
    device_bytes: float
    age_s: float


@dataclass(frozen=True, kw_only=True)
class NodeAccount:
    """What a keeper has seen. `trouble`: what it could not look at, and why; empty if nothing."""

    replicas: Mapping[str, ReplicaUse] = field(default_factory=dict)
    swept: tuple[Swept, ...] = ()
    trouble: str = ""


@dataclass(kw_only=True)
class Kept:
    """What all keepers have told by now. `unmet`: by pool. `trouble`: by node address.

    `swept`: the latest. `counts`: of processes and placement groups swept, by that word.
    """

    uses: Mapping[str, ReplicaUse] = field(default_factory=dict)
    unmet: Mapping[str, str] = field(default_factory=dict)
    trouble: Mapping[str, str] = field(default_factory=dict)
    swept: list[Swept] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def in_public(self) -> dict[str, Any]:
        """As `/status` shows it."""
        return {
            "trouble": dict(self.trouble),
            "unmet": dict(self.unmet),
            "swept": [plain(swept) for swept in self.swept],
            "counts": dict(self.counts),
        }


def plain(account: ReplicaUse | Swept) -> dict[str, Any]:
    """As JSON has it: what is unknown is null."""
    return {name: None if _unknown(value) else value for name, value in asdict(account).items()}


def joined(parts: list[ReplicaUse | None]) -> ReplicaUse:
    """A replica's use over its nodes. A node that was not heard (None) makes the sums unknown."""
    known = [part for part in parts if part is not None]
    whole = len(known) == len(parts) and bool(parts)
    return ReplicaUse(
        host_bytes=sum(part.host_bytes for part in known) if whole else math.nan,
        device_bytes=sum(part.device_bytes for part in known) if whole else math.nan,
        device_fault="; ".join(part.device_fault for part in known if part.device_fault),
    )


def _unknown(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
