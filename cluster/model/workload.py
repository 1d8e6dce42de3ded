"""What is asked of the model, and how fast it must answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Requests of `isl` prompt tokens and `osl` output tokens; `rate` requests/s if known."""

    isl: int
    osl: int
    rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class Slo:
    """Latency bounds in seconds; None = unbounded.

    TTFT: arrival to first token. TPOT: (end-to-end - TTFT) / (tokens - 1).
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
