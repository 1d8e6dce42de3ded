# ruff: noqa: E402  # thread counts are read when numpy is imported, so they are set before it
"""What one CPU core is worth as an inference device: figures of the catalogue's `cpu` entry.

One thread measures: fp32 matrix products (peak over a few sizes), reading and copying memory well
past the caches, the cost of dispatching one small operator, and the one-way latency and bandwidth
of a pipe between two processes (what a collective between two ranks of a node starts from).
The best of several repeats is kept: a peak is what an undisturbed run reaches.

    python bench/cpu_device.py [--quick] [--json FILE]
"""

from __future__ import annotations

import os

# One core is one device: the libraries must be told before they are imported.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
import json
import multiprocessing
import platform
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np


def best_seconds(work: Callable[[], object], *, repeats: int) -> float:
    """The shortest of `repeats` runs, after one that warms up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def matmul_flops(*, sizes: tuple[int, ...], repeats: int) -> dict[int, float]:
    """fp32 FLOP/s of an n x n by n x n product, per n."""
    rng = np.random.default_rng(0)
    rates = {}
    for n in sizes:
        a = rng.standard_normal((n, n), dtype=np.float32)
        b = rng.standard_normal((n, n), dtype=np.float32)
        out = np.empty((n, n), dtype=np.float32)
        seconds = best_seconds(partial(np.matmul, a, b, out=out), repeats=repeats)
        rates[n] = 2.0 * n**3 / seconds
    return rates


def memory_bandwidth(*, megabytes: int, repeats: int) -> dict[str, float]:
    """Bytes/s of streaming memory: reading (a weight matrix times one vector) and copying."""
    rows = megabytes * 1024 * 1024 // (4 * 4096)
    matrix = np.ones((rows, 4096), dtype=np.float32)
    vector = np.ones(4096, dtype=np.float32)
    target = np.empty_like(matrix)
    read = best_seconds(lambda: matrix @ vector, repeats=repeats)
    copy = best_seconds(lambda: np.copyto(target, matrix), repeats=repeats)
    # A copy reads and writes every byte.
    return {"read": matrix.nbytes / read, "copy": 2.0 * matrix.nbytes / copy}


def dispatch_seconds(*, repeats: int) -> dict[str, float]:
    """Seconds to start one operator too small to compute anything, per library."""
    small = np.ones((8, 8), dtype=np.float32)
    calls = 2000

    def numpy_calls() -> None:
        for _ in range(calls):
            np.matmul(small, small)

    found = {"numpy": best_seconds(numpy_calls, repeats=repeats) / calls}
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(1)
    tensor = torch.ones((8, 8))

    def torch_calls() -> None:
        for _ in range(calls):
            torch.mm(tensor, tensor)

    with torch.inference_mode():
        found["torch"] = best_seconds(torch_calls, repeats=repeats) / calls
    return found


def _echo(pipe: Connection) -> None:
    while message := pipe.recv_bytes():
        pipe.send_bytes(message)


def pipe_rates(*, repeats: int) -> dict[str, float]:
    """One-way latency (seconds, 64 bytes) and bandwidth (bytes/s, 16 MiB) between two processes."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_echo, args=(there,))
    process.start()
    small, large, rounds = bytes(64), bytes(16 * 1024 * 1024), 200

    def ping() -> None:
        for _ in range(rounds):
            here.send_bytes(small)
            here.recv_bytes()

    def bulk() -> None:
        here.send_bytes(large)
        here.recv_bytes()

    latency = best_seconds(ping, repeats=repeats) / rounds / 2.0
    bandwidth = len(large) / (best_seconds(bulk, repeats=repeats) / 2.0)
    here.send_bytes(b"")
    process.join()
    return {"latency_s": latency, "bandwidth": bandwidth}


def measure(*, quick: bool) -> dict[str, object]:
    """All figures, SI units."""
    repeats = 3 if quick else 10
    sizes = (512, 1024) if quick else (512, 1024, 2048)
    pipe = pipe_rates(repeats=repeats)
    return {
        "machine": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "numpy": np.__version__,
        "matmul_fp32_flops": matmul_flops(sizes=sizes, repeats=repeats),
        "memory_bandwidth": memory_bandwidth(megabytes=128 if quick else 512, repeats=repeats),
        "dispatch_s": dispatch_seconds(repeats=repeats),
        "pipe": pipe,
    }


def main() -> None:
    """Measure, print, and optionally write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer repeats and sizes (seconds)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    text = json.dumps(measure(quick=arguments.quick), indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
