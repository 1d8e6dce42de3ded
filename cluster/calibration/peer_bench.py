"""How fast do two devices of a node exchange bytes, and does NVLink connect them?

Every pair is timed twice: device to device, and through pinned host memory as without peer access.
A pair is NVLink-connected if its direct bandwidth is beyond what a PCIe slot of this machine
carries: 1.5 times the measured host copy, or more than a PCIe 6.0 x16 slot (121 GB/s one direction)
where the host copy itself is not PCIe (Grace superchips).
Invariants: each pair's points come in ascending size; the staged path is always measured with it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

from cluster.calibration.points import LinkPath, Measurements, PeerPoint
from cluster.calibration.timing import Deadline

_PCIE6_X16 = 121e9
_BEYOND_HOST = 1.5
_REPEATS = 5
_BLOCK_S = 1e-3
_MOST_CALLS = 32


def bench_peers(
    torch: Any,
    *,
    sizes: Sequence[int],
    host_bandwidth: float,
    deadline: Deadline,
    notes: list[str],
) -> tuple[PeerPoint, ...]:
    """Transfers between all pairs of CUDA devices; none for one device. `notes` grows.

    `host_bandwidth` (bytes/s) is the fastest host-to-device copy seen.
    """
    points: list[PeerPoint] = []
    pairs = list(combinations(range(int(torch.cuda.device_count())), 2))
    for done, (source, target) in enumerate(pairs):
        if deadline.passed():
            notes.append(f"peer links: {done} of {len(pairs)} pairs in the budget")
            break
        points += _pair(torch, source, target, sizes=sizes, host_bandwidth=host_bandwidth)
    return tuple(points)


def path_of(*, peer_access: bool, bandwidth: float, host_bandwidth: float) -> LinkPath:
    """What connects a pair that reaches `bandwidth` bytes/s device to device."""
    if not peer_access:
        return LinkPath.SHM
    fast = bandwidth > _BEYOND_HOST * host_bandwidth if host_bandwidth > 0.0 else False
    return LinkPath.NVLINK if fast or bandwidth > _PCIE6_X16 else LinkPath.PCIE


def path_inside(found: Measurements) -> LinkPath:
    """What connects the devices of a node: that of its worst connected pair."""
    if found.kind == "cpu":
        return LinkPath.LOOPBACK
    best: dict[tuple[int, int], LinkPath] = {}
    for point in found.peers:  # every pair has a staged (shm) point beside its direct one
        if point.path is not LinkPath.SHM:
            best[point.source, point.target] = point.path
        else:
            best.setdefault((point.source, point.target), LinkPath.SHM)
    for path in (LinkPath.SHM, LinkPath.PCIE):
        if path in best.values():
            return path
    return LinkPath.NVLINK if best else LinkPath.SHM


def _pair(
    torch: Any, source: int, target: int, *, sizes: Sequence[int], host_bandwidth: float
) -> list[PeerPoint]:
    direct, staged = [], []
    for size in sorted(sizes):
        near = torch.zeros(size, dtype=torch.uint8, device=f"cuda:{source}")
        far = torch.empty(size, dtype=torch.uint8, device=f"cuda:{target}")
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)

        def stage(host: Any = host, near: Any = near, far: Any = far) -> None:
            host.copy_(near, non_blocking=True)
            torch.cuda.synchronize(source)
            far.copy_(host, non_blocking=True)

        def cross(near: Any = near, far: Any = far) -> None:
            far.copy_(near, non_blocking=True)

        def settle() -> None:
            torch.cuda.synchronize(source)
            torch.cuda.synchronize(target)

        direct.append((size, _seconds(cross, settle)))
        staged.append((size, _seconds(stage, settle)))
    path = path_of(
        peer_access=bool(torch.cuda.can_device_access_peer(source, target)),
        bandwidth=max((size / seconds for size, seconds in direct), default=0.0),
        host_bandwidth=host_bandwidth,
    )
    found = [PeerPoint(source, target, size, seconds, path) for size, seconds in direct]
    found += [PeerPoint(source, target, size, seconds, LinkPath.SHM) for size, seconds in staged]
    return found


def _seconds(body: Callable[[], None], settle: Callable[[], None]) -> float:
    """Median seconds of a call, both devices idle before and after."""
    body()
    calls = max(1, min(_MOST_CALLS, int(_BLOCK_S / _block(body, settle, calls=1))))
    return statistics.median(_block(body, settle, calls=calls) for _ in range(_REPEATS))


def _block(body: Callable[[], None], settle: Callable[[], None], *, calls: int) -> float:
    settle()
    start = time.perf_counter()
    for _ in range(calls):
        body()
    settle()
    return max((time.perf_counter() - start) / calls, 1e-9)
