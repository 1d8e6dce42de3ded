"""What is in a trace? Its size, rate, burstiness, lengths, and how much of its prompts recurs.

The rate is the inverse of the mean gap, (n - 1) / (last - first arrival). A block counts as reused
where an earlier request had it: the share a prefix cache of endless size would serve.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.errors import InputError
from cluster.traces.request import TraceRequest

PEAK_WINDOW_S = 10.0


@dataclass(frozen=True, kw_only=True)
class LengthSummary:
    """Tokens: mean, median, 99th percentile, largest."""

    mean: float
    p50: float
    p99: float
    largest: int


@dataclass(frozen=True, kw_only=True)
class TraceSummary:
    """A trace in numbers.

    `duration_s` from the first to the last arrival; `rate` and `gap_cv` (standard deviation of
    gaps over their mean; a coarse clock lifts it) are 0 where all requests come at once.
    `peak_rate`: of the busiest ten seconds, requests/s. `reused_blocks`: share of prompt blocks
    seen before, None where the trace tells no blocks.
    """

    requests: int
    duration_s: float
    rate: float
    gap_cv: float
    peak_rate: float
    prompt: LengthSummary
    output: LengthSummary
    reused_blocks: float | None


def describe(requests: Iterable[TraceRequest]) -> TraceSummary:
    """The summary of a trace. Raises InputError where it has no requests."""
    times, prompts, outputs = array("d"), array("q"), array("q")
    seen: set[int] = set()
    blocks = 0
    for arrival, prompt, output, _, ids, _ in requests:
        times.append(arrival)
        prompts.append(prompt)
        outputs.append(output)
        if ids:
            blocks += len(ids)
            seen.update(ids)
    if not times:
        raise InputError("a trace without requests has nothing to describe.")
    arrivals = np.frombuffer(times, dtype=np.float64)
    duration_s = float(arrivals[-1] - arrivals[0])
    gaps = np.diff(arrivals)
    return TraceSummary(
        requests=len(times),
        duration_s=duration_s,
        rate=len(gaps) / duration_s if duration_s > 0.0 else 0.0,
        gap_cv=float(gaps.std() / gaps.mean()) if duration_s > 0.0 else 0.0,
        peak_rate=_peak(arrivals),
        prompt=_lengths(prompts),
        output=_lengths(outputs),
        # Every block that is not the first of its id is reused.
        reused_blocks=1.0 - len(seen) / blocks if blocks else None,
    )


def _peak(arrivals: NDArray[np.float64]) -> float:
    """The most requests in (t - 10 s, t], per second."""
    before = np.searchsorted(arrivals, arrivals - PEAK_WINDOW_S, side="right")
    return float((np.arange(1, len(arrivals) + 1) - before).max() / PEAK_WINDOW_S)


def _lengths(counted: array[int]) -> LengthSummary:
    tokens = np.frombuffer(counted, dtype=np.int64)
    p50, p99 = np.percentile(tokens, (50.0, 99.0))
    return LengthSummary(
        mean=float(tokens.mean()), p50=float(p50), p99=float(p99), largest=int(tokens.max())
    )
