"""Was a request answered within the plan's SLO? What goodput and burn rates count.

    stream:  TTFT <= bound,  (duration - TTFT) / (tokens - 1) <= bound
    else:    duration <= bound of TTFT + (tokens - 1) * bound of TPOT

since nobody has seen the first token of an answer that is not streamed. Refused (429) and failed
(5xx, or cut short) requests have missed it; the caller's own mistakes, and callers who left, say
nothing of the service. What is unknown (tokens of some answers) is not held against it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from cluster.model.workload import Slo

Finish = Literal["completed", "cancelled", "error"]
_BUSY = 429


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A request that is over. Seconds, tokens; None where there was none or nobody knows."""

    pool: str | None
    status: int
    finish: Finish
    stream: bool
    ttft_s: float | None
    duration_s: float
    output_tokens: int | None


def met(ended: Ended, slo: Slo) -> bool | None:
    """Whether it has met the SLO; None if it does not count."""
    if ended.finish == "cancelled":
        return None
    if ended.finish == "error":
        # A stream that broke off has the status it began with.
        failed = ended.status < 400 or ended.status == _BUSY or ended.status >= 500
        return False if failed else None
    ttft_s = math.inf if slo.ttft_s is None else slo.ttft_s
    tpot_s = math.inf if slo.tpot_s is None else slo.tpot_s
    gaps = 0 if ended.output_tokens is None else max(0, ended.output_tokens - 1)
    if not ended.stream:
        unknown = ended.output_tokens is None and math.isfinite(tpot_s)
        return unknown or ended.duration_s <= ttft_s + (gaps * tpot_s if gaps else 0.0)
    if ended.ttft_s is None:
        return True
    decode_s = ended.duration_s - ended.ttft_s
    return ended.ttft_s <= ttft_s and (gaps == 0 or decode_s <= gaps * tpot_s)
