"""What does a microbenchmark tell? Timings as plain data, ready for a fit and for the wire.

A point is one thing timed: seconds of one kernel, copy or collective, with the sizes that decide
them. Invariants: seconds > 0 and finite; sizes are bytes; `bytes` of a collective is counted as the
cost model counts it (`cluster.costmodel.collectives`): all-reduce, what every rank holds;
all-gather, what every rank ends with; reduce-scatter, what every rank brings; all-to-all, what
every rank sends; send_recv, what is handed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from cluster.errors import InputError


class CollectiveKind(StrEnum):
    """Collectives that are measured; the values are names of parts of a step."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND_RECV = "send_recv"


class LinkPath(StrEnum):
    """What carries bytes between two ranks.

    `shm` is memory of the host (GPUs without peer access stage through it), `loopback` the network
    stack inside one host (how gloo connects processes), `network` leaves the host or the NVLink
    domain.
    """

    NVLINK = "nvlink"
    PCIE = "pcie"
    SHM = "shm"
    LOOPBACK = "loopback"
    NETWORK = "network"


def _check(seconds: float, what: object) -> None:
    if not (math.isfinite(seconds) and seconds > 0.0):
        raise InputError(f"a measured time must be a positive number of seconds: {what}")


@dataclass(frozen=True)
class GemmPoint:
    """(m, k) times (k, n) with weights in `format` (a `NumberFormat` value)."""

    m: int
    n: int
    k: int
    format: str
    seconds: float

    def __post_init__(self) -> None:
        _check(self.seconds, self)


@dataclass(frozen=True)
class CopyPoint:
    """`bytes` copied once (so a copy inside one memory moves twice as many)."""

    bytes: int
    seconds: float

    def __post_init__(self) -> None:
        _check(self.seconds, self)


@dataclass(frozen=True)
class LaunchPoint:
    """One kernel with next to nothing to do, replayed from a graph (`captured`) or launched."""

    captured: bool
    seconds: float

    def __post_init__(self) -> None:
        _check(self.seconds, self)


@dataclass(frozen=True)
class PeerPoint:
    """`bytes` from device `source` to device `target` of one node over `path`."""

    source: int
    target: int
    bytes: int
    seconds: float
    path: LinkPath

    def __post_init__(self) -> None:
        _check(self.seconds, self)


@dataclass(frozen=True)
class CollectivePoint:
    """One collective of `ranks` ranks; `domains` is how many scale-up domains they lie in."""

    kind: CollectiveKind
    ranks: int
    bytes: int
    seconds: float
    crosses_domain: bool
    path: LinkPath
    domains: int = 1

    def __post_init__(self) -> None:
        _check(self.seconds, self)


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What was measured on one node, or (merged) on a cluster of equal nodes.

    `kind` is "gpu" or "cpu", `device` the product's own name, `notes` say what was left out.
    """

    node: str
    device: str
    kind: str
    devices: int
    gemm: tuple[GemmPoint, ...] = ()
    copies: tuple[CopyPoint, ...] = ()
    host_copies: tuple[CopyPoint, ...] = ()
    launches: tuple[LaunchPoint, ...] = ()
    peers: tuple[PeerPoint, ...] = ()
    collectives: tuple[CollectivePoint, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def merged(cls, parts: Iterable[Self]) -> Self:
        """All points of equal nodes as one set; InputError for none, or for unlike devices."""
        every = list(parts)
        if not every:
            raise InputError("no node was measured, so there is nothing to merge.")
        names = sorted({part.device for part in every})
        if len(names) > 1:
            raise InputError(
                f"the nodes have different devices ({', '.join(names)}); one calibration describes "
                "one kind. Fix: calibrate each kind of node by itself."
            )
        return cls(
            node=", ".join(part.node for part in every),
            device=names[0],
            kind=every[0].kind,
            devices=sum(part.devices for part in every),
            gemm=tuple(point for part in every for point in part.gemm),
            copies=tuple(point for part in every for point in part.copies),
            host_copies=tuple(point for part in every for point in part.host_copies),
            launches=tuple(point for part in every for point in part.launches),
            peers=tuple(point for part in every for point in part.peers),
            collectives=tuple(point for part in every for point in part.collectives),
            notes=tuple(f"{part.node}: {note}" for part in every for note in part.notes),
        )
