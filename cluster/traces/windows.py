"""When do n requests come in a window of T seconds, and how long are they?

Given that it has n events in a window, a renewal process with Gamma gaps of shape a = 1/cv^2 places
them by n + 1 gaps distributed as Dirichlet(a, ..., a) * T: Gamma draws divided by their sum. So a
window's count is exactly the file's, and the gaps' variation close to cv for n >> cv^2.

The sum of m such draws is a Gamma draw of shape m a, which lets a window of any size be expanded in
blocks: first each block's share of the window, then the gaps inside it (memory: one block).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.traces.lengths import Exponential, Lognormal
from cluster.traces.options import WindowOptions
from cluster.traces.request import TraceRequest

Floats = NDArray[np.float64]

_BLOCK = 1 << 14  # gaps drawn at once
_CONSTANT_CV = 1e-3  # below it gaps count as equal


@dataclass(frozen=True, kw_only=True)
class Window:
    """`requests` requests come within `duration_s` from `start_s`."""

    start_s: float
    duration_s: float
    requests: int
    cv: float
    prompt_tokens: float
    output_tokens: float


def expand(
    window: Window, options: WindowOptions, rng: np.random.Generator
) -> Iterator[TraceRequest]:
    """The requests of one window, in order."""
    prompt_law = Lognormal.of_sigma(window.prompt_tokens, options.prompt_sigma)
    output_law = Exponential(window.output_tokens)
    for times in arrivals(window, rng):
        prompts = prompt_law.draw(rng, len(times))
        outputs = output_law.draw(rng, len(times))
        for arrival, prompt, output in zip(
            times.tolist(), prompts.tolist(), outputs.tolist(), strict=True
        ):
            yield TraceRequest(arrival, prompt, output)


def arrivals(window: Window, rng: np.random.Generator) -> Iterator[Floats]:
    """Arrival times of a window, in blocks."""
    gaps = window.requests + 1
    sizes = [min(_BLOCK, gaps - first) for first in range(0, gaps, _BLOCK)]
    shape = 1.0 / window.cv**2 if window.cv > _CONSTANT_CV else np.inf
    shares = _shares(np.array(sizes, dtype=np.float64), shape, rng) * window.duration_s
    end_s = window.start_s + window.duration_s
    for size, begins, lasts in zip(sizes, np.cumsum(shares) - shares, shares, strict=True):
        times = np.cumsum(_shares(np.ones(size), shape, rng)) * lasts + begins + window.start_s
        # The last gap of the window ends with the window, not with a request.
        kept = times[: min(size, gaps - 1)]
        gaps -= size
        if len(kept):
            yield np.minimum(kept, end_s)


def _shares(weights: Floats, shape: float, rng: np.random.Generator) -> Floats:
    """Shares of a whole: Gamma draws of `shape` * weight over their sum."""
    drawn = weights if shape == np.inf else rng.standard_gamma(shape * weights)
    total = float(drawn.sum())
    if total > 0.0:
        return drawn / total
    # Draws of a tiny shape underflow: in that limit one gap takes all.
    alone = np.zeros(len(weights))
    alone[rng.choice(len(weights), p=weights / weights.sum())] = 1.0
    return alone
