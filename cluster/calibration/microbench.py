"""What does this node's hardware reach? Matrix products, copies, launches and peer links, timed.

One device of each kind is measured (equal devices of a node are equal), beside the links between
all pairs. Weights rotate through more memory than the caches hold, since an engine never finds a
layer's weights in a cache; on a CPU one thread is measured, because a device of the catalogue is
one core. Torch is imported inside functions: the module itself loads where torch is absent.

Invariants: every stage ends within its share of the budget plus one point; a grid that was cut
short is walked in an order that covers both ends first, and a note says how far it came.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.calibration.peer_bench import bench_peers
from cluster.calibration.points import (
    CollectivePoint,
    CopyPoint,
    GemmPoint,
    LaunchPoint,
    Measurements,
    PeerPoint,
)
from cluster.calibration.timing import CpuTimer, CudaTimer, Deadline, Timer
from cluster.errors import UnavailableError

__all__ = [
    "CollectivePoint",
    "CopyPoint",
    "GemmPoint",
    "LaunchPoint",
    "Measurements",
    "PeerPoint",
    "Sizes",
    "bench_copies",
    "bench_gemm",
    "bench_host_copies",
    "bench_launches",
    "load_torch",
    "measure_node",
]

_MIB = 2**20
_CPU_CACHE = 32 * _MIB  # per socket where it cannot be asked for
_MOST_COPIES = 64
_SHARES = {"gemm": 0.6, "copies": 0.1, "host": 0.1, "launches": 0.05, "peers": 0.15}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured: weights (n, k), tokens m, bytes of copies and of peer transfers."""

    weights: tuple[tuple[int, int], ...]
    tokens: tuple[int, ...]
    copies: tuple[int, ...]
    peers: tuple[int, ...]

    @classmethod
    def of(cls, kind: str) -> Sizes:
        """The grid of a "gpu" (layers of 7B to 70B models) or of a "cpu" core (below 1B)."""
        if kind == "gpu":
            return cls(
                weights=((4096, 4096), (8192, 8192), (28672, 4096), (4096, 14336)),
                tokens=(1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192),
                copies=tuple(_MIB * 4**step for step in range(6)),
                peers=tuple(1024 * 4**step for step in range(9)),
            )
        return cls(
            weights=((1024, 1024), (2048, 2048), (4096, 1024)),
            tokens=(1, 2, 4, 8, 16, 32, 128, 512),
            copies=tuple(_MIB * 4**step for step in range(5)),
            peers=(),
        )


def load_torch() -> Any:
    """The torch module, or UnavailableError that says how to get it."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise UnavailableError(
            f"PyTorch cannot be imported on node {platform.node()} ({error}), and the "
            "microbenchmarks run on it. Fix: install the cpu or the gpu extra there."
        ) from error


def measure_node(*, budget_s: float = 60.0, sizes: Sizes | None = None) -> Measurements:
    """Everything but collectives, on this node, in about `budget_s` seconds.

    Raises UnavailableError without torch. CUDA devices where there are any, else one CPU core.
    """
    torch = load_torch()
    kind = "gpu" if torch.cuda.is_available() else "cpu"
    sizes = sizes or Sizes.of(kind)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(torch, kind=kind, sizes=sizes, budget_s=budget_s)
    finally:
        torch.set_num_threads(threads)
        if kind == "gpu":
            torch.cuda.empty_cache()


def _measure(torch: Any, *, kind: str, sizes: Sizes, budget_s: float) -> Measurements:
    timer: Timer = CudaTimer(torch) if kind == "gpu" else CpuTimer()
    notes: list[str] = []

    def until(stage: str) -> Deadline:
        return Deadline.after(budget_s * _SHARES[stage])

    host = bench_host_copies(torch, sizes=sizes.copies, timer=timer, deadline=until("host"))
    fastest = max((point.bytes / point.seconds for point in host), default=0.0)
    cuda = torch.cuda
    gpu = kind == "gpu"
    return Measurements(
        node=platform.node(),
        device=str(cuda.get_device_name(0)) if gpu else _cpu_name(),
        kind=kind,
        devices=int(cuda.device_count()) if gpu else len(os.sched_getaffinity(0)),
        host_copies=host,
        gemm=bench_gemm(torch, sizes=sizes, timer=timer, deadline=until("gemm"), notes=notes),
        copies=bench_copies(torch, sizes=sizes.copies, timer=timer, deadline=until("copies")),
        launches=bench_launches(torch, timer=timer),
        peers=bench_peers(
            torch, sizes=sizes.peers, host_bandwidth=fastest, deadline=until("peers"), notes=notes
        )
        if gpu
        else (),
        notes=tuple(notes),
    )


def bench_gemm(
    torch: Any, *, sizes: Sizes, timer: Timer, deadline: Deadline, notes: list[str]
) -> tuple[GemmPoint, ...]:
    """Products over the grid in every format the device multiplies in; `notes` grows.

    A format that the device's libraries refuse, or that memory does not hold, is left with a note.
    """
    points: list[GemmPoint] = []
    refused: set[str] = set()
    formats = _formats(torch, timer.kind)
    grid = [
        (m, n, k, fmt) for m in spread(sizes.tokens) for n, k in sizes.weights for fmt in formats
    ]
    for m, n, k, fmt in grid:
        if deadline.passed():
            notes.append(f"matrix products: {len(points)} of {len(grid)} points in the budget")
            break
        if fmt in refused:
            continue
        try:
            seconds = timer.seconds(_product(torch, m, n, k=k, fmt=fmt, kind=timer.kind))
        except RuntimeError as error:
            refused.add(fmt)
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            notes.append(f"matrix products in {fmt} stop at m={m}, n={n}, k={k}: {reason}")
            continue
        points.append(GemmPoint(m, n, k, fmt, seconds))
    return tuple(points)


def bench_copies(
    torch: Any, *, sizes: Sequence[int], timer: Timer, deadline: Deadline
) -> tuple[CopyPoint, ...]:
    """Copies inside the device's memory."""
    points: list[CopyPoint] = []
    for size in spread(sizes):
        if points and deadline.passed():
            break
        source = torch.zeros(size, dtype=torch.uint8, device=_device(timer.kind))
        target = torch.empty_like(source)
        body = _copier(target, source)
        points.append(CopyPoint(size, timer.seconds(body)))
    return tuple(points)


def bench_host_copies(
    torch: Any, *, sizes: Sequence[int], timer: Timer, deadline: Deadline
) -> tuple[CopyPoint, ...]:
    """Copies from pinned host memory to the device; none on a CPU, which is its own host."""
    if timer.kind == "cpu":
        return ()
    points: list[CopyPoint] = []
    for size in spread(sizes):
        if points and deadline.passed():
            break
        source = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
        target = torch.empty(size, dtype=torch.uint8, device="cuda")
        points.append(CopyPoint(size, timer.seconds(_copier(target, source), captured=False)))
    return tuple(points)


def bench_launches(torch: Any, *, timer: Timer) -> tuple[LaunchPoint, ...]:
    """The least time of a kernel: launched one by one and, on a GPU, replayed from a graph."""
    value = torch.zeros(1, device=_device(timer.kind))

    def tiny() -> None:
        value.add_(1.0)

    modes = (True, False) if timer.kind == "gpu" else (False,)
    return tuple(
        LaunchPoint(captured, timer.seconds(tiny, captured=captured)) for captured in modes
    )


def spread(values: Sequence[int]) -> Iterator[int]:
    """The values from both ends inwards, so that a beginning of them covers the range."""
    ordered = sorted(values)
    while ordered:
        yield ordered.pop(0)
        if ordered:
            yield ordered.pop()


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _device(kind: str) -> str:
    return "cuda" if kind == "gpu" else "cpu"


def _copier(target: Any, source: Any) -> Callable[[], object]:
    return lambda: target.copy_(source, non_blocking=True)


def _formats(torch: Any, kind: str) -> tuple[str, ...]:
    if kind == "cpu":
        return ("fp32",)
    # cuBLASLt multiplies fp8 from compute capability 8.9 (Ada) on; 9.4 is AMD's MI300.
    return ("bf16", "fp8") if torch.cuda.get_device_capability(0) >= (8, 9) else ("bf16",)


def _product(torch: Any, m: int, n: int, *, k: int, fmt: str, kind: str) -> Callable[[], object]:
    """A call that multiplies by the next of the rotating weights."""
    device = _device(kind)
    stored = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": _fp8(torch)}[fmt]
    width = stored.itemsize
    copies = max(1, min(_MOST_COPIES, math.ceil(3 * _cache_bytes(torch, kind) / (n * k * width))))
    weights = [(torch.randn(n, k, device=device) * 0.02).to(stored) for _ in range(copies)]
    tokens = torch.randn(m, k, device=device).to(stored)
    step = 0

    def turn() -> Any:
        nonlocal step
        step += 1
        return weights[step % copies].t()

    if fmt != "fp8":
        out = torch.empty(m, n, dtype=stored, device=device)
        return lambda: torch.mm(tokens, turn(), out=out)
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(
        tokens, turn(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def _fp8(torch: Any) -> Any:
    """MI300 multiplies the variant without negative zero."""
    return torch.float8_e4m3fnuz if torch.version.hip else torch.float8_e4m3fn


def _cache_bytes(torch: Any, kind: str) -> int:
    if kind == "cpu":
        return _CPU_CACHE
    return int(torch.cuda.get_device_properties(0).L2_cache_size)
