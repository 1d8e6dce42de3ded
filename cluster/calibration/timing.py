"""How long does one call take on a device? Clocks for the microbenchmarks.

On a CPU the wall clock around enough calls to outlast its jitter; on a GPU CUDA events around
replays of a graph that holds those calls, so that what is timed is the device and not Python
(an engine replays graphs too). The answer is the median of several such blocks, which ignores the
one that was disturbed; every block follows a warm-up.

Torch is imported by whoever calls: this module imports none of it. Invariant: seconds > 0.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Body = Callable[[], object]

_REPEATS = 5
_WARM_UP = 2
_BLOCK_S = {"cpu": 2e-3, "gpu": 5e-4}
_MOST_CALLS = 64


@dataclass(frozen=True)
class Deadline:
    """A point on the monotonic clock after which no further point is begun."""

    at_s: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """`seconds` from now."""
        return cls(time.monotonic() + seconds)

    def passed(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() >= self.at_s


class CpuTimer:
    """Wall clock of one thread."""

    kind = "cpu"

    def seconds(self, body: Body, *, captured: bool = True) -> float:  # noqa: ARG002
        """Median seconds of one call of `body`; a CPU captures nothing."""
        for _ in range(_WARM_UP):
            body()
        calls = _calls(_wall(body, calls=1), kind=self.kind)
        return statistics.median(_wall(body, calls=calls) for _ in range(_REPEATS))


class CudaTimer:
    """CUDA events on the current device. `torch` is the imported module."""

    kind = "gpu"

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def seconds(self, body: Body, *, captured: bool = True, calls: int | None = None) -> float:
        """Median device seconds of one call, replayed from a graph unless not `captured`.

        A block is of `calls` calls, by default as many as are long enough to time.
        """
        cuda = self._torch.cuda
        stream = cuda.Stream()  # what is captured must have run on a stream of its own before
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(_WARM_UP):
                body()
        cuda.current_stream().wait_stream(stream)
        cuda.synchronize()
        calls = calls or _calls(self._elapsed(body, calls=1), kind=self.kind)
        if captured:
            replay = self.capture(body, calls=calls)
            replay()
            return statistics.median(
                self._elapsed(replay, calls=1) / calls for _ in range(_REPEATS)
            )
        return statistics.median(self._elapsed(body, calls=calls) / calls for _ in range(_REPEATS))

    def capture(self, body: Body, *, calls: int) -> Body:
        """A graph of `calls` calls, as a function that replays it."""
        graph = self._torch.cuda.CUDAGraph()
        # Other threads (a communicator's watchdog) may call CUDA meanwhile.
        with self._torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(calls):
                body()
        replay: Body = graph.replay
        return replay

    def _elapsed(self, body: Body, *, calls: int) -> float:
        cuda = self._torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        start.record()
        for _ in range(calls):
            body()
        end.record()
        end.synchronize()
        return max(float(start.elapsed_time(end)) * 1e-3, 1e-9)


Timer = CpuTimer | CudaTimer


def _wall(body: Body, *, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        body()
    return max((time.perf_counter() - start) / calls, 1e-9)


def _calls(seconds: float, *, kind: str) -> int:
    """How many calls make a block long enough to time."""
    return max(1, min(_MOST_CALLS, math.ceil(_BLOCK_S[kind] / seconds)))
