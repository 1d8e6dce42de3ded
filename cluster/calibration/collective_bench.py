"""How long do collectives take between ranks? `torch.distributed`, NCCL on GPUs, gloo on CPUs.

Every rank is a process that calls `run_rank` with the same arguments; the points come back from
rank 0. A point is the slowest rank's median, as a step waits for the slowest. send_recv is half a
round trip between the first two ranks of a group. On GPUs the collectives are captured in a graph,
since engines replay them that way. `cluster.calibration.machine` starts the processes on one
machine; across nodes Ray does (`cluster.ray_backend.measure`).

Invariants: all ranks take part in the same collectives in the same order (the budget is agreed on
before each point), so that none waits for one that has stopped.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.calibration.microbench import load_torch, spread
from cluster.calibration.points import CollectiveKind, CollectivePoint, LinkPath
from cluster.calibration.timing import CudaTimer, Deadline

DEFAULT_SIZES = tuple(1024 * 4**step for step in range(9))
"""1 KiB to 64 MiB."""

MOST_CPU_RANKS = 2
"""Ranks of a CPU node: its cores share one memory bus, more ranks tell nothing new."""

START_S = 120.0
"""Seconds to import torch and meet the other ranks, beside the budget."""

_SMALL = 65_536  # bytes below which a collective is repeated more often
_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class Team:
    """Ranks that communicate: what connects them, and in how many scale-up domains they lie."""

    ranks: tuple[int, ...]
    path: LinkPath
    domains: int = 1


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What all ranks do. `device` is "cuda" or "cpu"; sizes are bytes."""

    world: int
    device: str
    teams: tuple[Team, ...]
    sizes: tuple[int, ...] = DEFAULT_SIZES
    kinds: tuple[CollectiveKind, ...] = field(default=tuple(CollectiveKind))
    budget_s: float = 30.0


def teams(domain_of: Sequence[int], *, inside: LinkPath) -> tuple[Team, ...]:
    """Which groups to time, for ranks that lie in domains `domain_of` (one entry a rank).

    Inside the fullest domain 2, 4, 8, ... ranks and all of them; across, one rank of each of 2, 4,
    ... domains and of all. Empty for a single rank. `inside` is what connects a domain.
    """
    by_domain: dict[int, list[int]] = {}
    for rank, domain in enumerate(domain_of):
        by_domain.setdefault(domain, []).append(rank)
    fullest = max(by_domain.values(), key=len, default=[])
    found = [Team(ranks=tuple(fullest[:count]), path=inside) for count in _counts(len(fullest))]
    firsts = [ranks[0] for ranks in by_domain.values()]
    found += [
        Team(ranks=tuple(sorted(firsts[:count])), path=LinkPath.NETWORK, domains=count)
        for count in _counts(len(firsts))
    ]
    return tuple(found)


def _counts(most: int) -> list[int]:
    counts = [2**power for power in range(1, most.bit_length()) if 2**power <= most]
    return counts if not counts or counts[-1] == most else [*counts, most]


def run_rank(rank: int, schedule: Schedule, *, meeting: str) -> tuple[CollectivePoint, ...]:
    """Take part as `rank` (its device is the first CUDA device it sees, or the CPU).

    `meeting` is torch's init_method (tcp://host:port, file:///path). Returns the points on rank 0,
    nothing elsewhere.
    """
    torch = load_torch()
    import torch.distributed as dist

    if schedule.device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if schedule.device == "cuda" else "gloo",
        init_method=meeting,
        rank=rank,
        world_size=schedule.world,
        timeout=datetime.timedelta(seconds=START_S + schedule.budget_s),
    )
    try:
        return tuple(_points(torch, dist, rank=rank, schedule=schedule))
    finally:
        dist.destroy_process_group()


def _points(torch: Any, dist: Any, *, rank: int, schedule: Schedule) -> Iterator[CollectivePoint]:
    groups = [(team, dist.new_group(list(team.ranks))) for team in schedule.teams]
    deadline = Deadline.after(schedule.budget_s)
    for size in spread(schedule.sizes):
        for team, group in groups:
            for kind in schedule.kinds:
                # Every rank of the world agrees whether there is time for another point.
                late = torch.tensor([float(deadline.passed())], device=schedule.device)
                dist.all_reduce(late, op=dist.ReduceOp.MAX)
                if late.item() > 0.0:
                    return
                spent = torch.zeros(1, dtype=torch.float64, device=schedule.device)
                if rank in team.ranks:
                    bodies = _Bodies(torch, dist, group=group, team=team, device=schedule.device)
                    spent += bodies.seconds(kind, size=size, rank=rank)
                dist.all_reduce(spent, op=dist.ReduceOp.MAX)
                if rank == 0:
                    yield CollectivePoint(
                        kind,
                        len(team.ranks),
                        size,
                        float(spent.item()),
                        team.domains > 1,
                        team.path,
                        team.domains,
                    )


class _Bodies:
    """The collectives of one team, each as a function to time."""

    def __init__(self, torch: Any, dist: Any, *, group: Any, team: Team, device: str) -> None:
        self._torch, self._dist, self._group = torch, dist, group
        self._team, self._device = team, device

    def seconds(self, kind: CollectiveKind, *, size: int, rank: int) -> float:
        """Median seconds of one collective as this rank sees it; 0 for a bystander of a pair."""
        if kind is CollectiveKind.SEND_RECV:
            if rank not in self._team.ranks[:2]:
                return 0.0
            return (
                self._time(self._round_trip(size, first=rank == self._team.ranks[0]), size=size)
                / 2.0
            )
        return self._time(self._collective(kind, size), size=size)

    def _collective(self, kind: CollectiveKind, size: int) -> Callable[[], object]:
        dist, group, count = self._dist, self._group, len(self._team.ranks)
        share = max(1, size // 4 // count)  # four bytes an element
        part, whole = self._floats(share), self._floats(share * count)
        if kind is CollectiveKind.ALL_REDUCE:
            return lambda: dist.all_reduce(whole, group=group)
        if kind is CollectiveKind.ALL_GATHER:
            # Torch 2.13 renames two collectives and warns of the old names.
            gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
            return lambda: gather(whole, part, group=group)
        if kind is CollectiveKind.REDUCE_SCATTER:
            reduce = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            return lambda: reduce(part, whole, group=group)
        other = self._floats(share * count)
        return lambda: dist.all_to_all_single(other, whole, group=group)

    def _round_trip(self, size: int, *, first: bool) -> Callable[[], object]:
        dist, group = self._dist, self._group
        peer = self._team.ranks[1 if first else 0]
        data = self._floats(max(1, size // 4))

        def there_and_back() -> None:
            if first:
                dist.send(data, peer, group=group)
                dist.recv(data, peer, group=group)
            else:
                dist.recv(data, peer, group=group)
                dist.send(data, peer, group=group)

        return there_and_back

    def _floats(self, count: int) -> Any:
        return self._torch.zeros(count, dtype=self._torch.float32, device=self._device)

    def _time(self, body: Callable[[], object], *, size: int) -> float:
        calls = 32 if size <= _SMALL else 4  # the same on every rank, whatever its clock says
        if self._device == "cuda":
            return CudaTimer(self._torch).seconds(body, calls=calls)
        body()
        times = []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            for _ in range(calls):
                body()
            times.append((time.perf_counter() - start) / calls)
        return sorted(times)[_REPEATS // 2]
