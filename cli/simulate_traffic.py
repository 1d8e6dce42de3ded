"""Which requests does `simulate` send? A trace file or a synthetic one, cut, scaled and classed.

In this order: the window (in the trace's own time), the rate, the speed, the lengths, the classes,
the limit. Iterating again gives the same requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.simulate_options import window_s
from cluster.errors import InputError
from cluster.priority import Priority
from cluster.traces.files import Trace, open_trace
from cluster.traces.options import WindowOptions
from cluster.traces.request import TraceRequest
from cluster.traces.scaling import (
    assign_priorities,
    cut,
    limit,
    sample,
    scale_lengths,
    scale_rate,
)
from cluster.traces.synthetic import SyntheticTrace
from cluster.traces.synthetic_text import parse_synthetic

_EXAMPLE = "poisson:rate=5,duration=10min,isl=1024,osl=256"


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """A trace with what is to be done to it. `shares` None keeps the trace's classes."""

    trace: Trace | SyntheticTrace
    window_s: tuple[float, float] = (0.0, math.inf)
    rate_scale: float = 1.0
    speed_up: float = 1.0
    prompt_scale: float = 1.0
    output_scale: float = 1.0
    shares: Mapping[Priority, float] | None = None
    limit: int | None = None
    seed: int = 0

    def __iter__(self) -> Iterator[TraceRequest]:
        start_s, end_s = self.window_s
        found = cut(self.trace, start_s=start_s, end_s=end_s)
        if self.rate_scale != 1.0:
            found = sample(found, self.rate_scale, seed=self.seed)
        found = scale_rate(found, self.speed_up)
        if (self.prompt_scale, self.output_scale) != (1.0, 1.0):
            found = scale_lengths(found, prompt=self.prompt_scale, output=self.output_scale)
        if self.shares is not None:
            found = assign_priorities(found, self.shares, seed=self.seed)
        return found if self.limit is None else limit(found, self.limit)


def traffic(
    text: str,
    *,
    format_name: str | None,
    window: str | None,
    rate_scale: float,
    speed_up: float,
    prompt_scale: float,
    output_scale: float,
    vip_share: float | None,
    batch_share: float | None,
    most: int | None,
    seed: int,
) -> Traffic:
    """Check and put together. Raises InputError naming the option."""
    for option, value in (
        ("--rate-scale", rate_scale),
        ("--speed-up", speed_up),
        ("--prompt-scale", prompt_scale),
        ("--output-scale", output_scale),
    ):
        if not 0.0 < value < math.inf:
            raise InputError(
                f"{option} {value:g} must be a number above 0. Fix: 1 changes nothing."
            )
    made = Traffic(
        trace=trace_of(text, format_name=format_name, seed=seed),
        window_s=(0.0, math.inf) if window is None else window_s(window),
        rate_scale=rate_scale,
        speed_up=speed_up,
        prompt_scale=prompt_scale,
        output_scale=output_scale,
        shares=_shares(vip_share, batch_share),
        limit=most,
        seed=seed,
    )
    if next(iter(made), None) is None:
        raise InputError(
            f"--trace {text}: no request is left of it. Fix: widen --window, raise --rate-scale, "
            "or make the trace longer."
        )
    return made


def trace_of(text: str, *, format_name: str | None, seed: int) -> Trace | SyntheticTrace:
    """A trace file, or one that is described. Raises InputError."""
    path = Path(text)
    if _exists(path):
        return open_trace(path, format=format_name, windows=WindowOptions(seed=seed))
    if ":" not in text:
        raise InputError(
            f"--trace {text} is no file. Fix: pass one that exists, or describe a trace, e.g. "
            f"`{_EXAMPLE}`."
        )
    if format_name is not None:
        raise InputError(f"--format is of files, '{text}' is none. Fix: leave --format out.")
    return parse_synthetic(text)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # longer than a file name may be, or holding a null byte
        return False


def _shares(vip: float | None, batch: float | None) -> Mapping[Priority, float] | None:
    if vip is None and batch is None:
        return None
    first, last = vip or 0.0, batch or 0.0
    if not (first >= 0.0 and last >= 0.0 and first + last <= 1.0):
        raise InputError(
            f"--vip-share {first:g} and --batch-share {last:g} must be at least 0 and together at "
            "most 1: the rest is of class standard."
        )
    return {
        Priority.VIP: first,
        Priority.STANDARD: 1.0 - first - last,
        Priority.BATCH: last,
    }
