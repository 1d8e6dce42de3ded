"""What is asked of the model, and how fast it must answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Lengths(StrEnum):
    """How alike requests are. Equal ones, all in flight at once, move in step."""

    DRAWN = "drawn"  # every request has a length of its own
    EQUAL = "equal"  # as load generators with fixed lengths send


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Requests of `isl` prompt tokens and `osl` output tokens (means); `rate` requests/s if known.

    `prefix_hit` of the prompt tokens are in the prefix cache, a share in [0, 1).
    """

    isl: int
    osl: int
    rate: float | None = None
    prefix_hit: float = 0.0
    lengths: Lengths = Lengths.DRAWN


@dataclass(frozen=True, kw_only=True)
class Slo:
    """Latency bounds in seconds; None = unbounded.

    TTFT: arrival to first token. TPOT: (end-to-end - TTFT) / (tokens - 1).
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
