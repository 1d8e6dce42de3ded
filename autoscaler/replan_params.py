"""When has the workload drifted from the plan? Thresholds, and what the plan was made for."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from autoscaler.checks import above, at_least


class ReplanMode(StrEnum):
    """OFF: nobody looks. ADVISE: a better layout is told. ACT: it is moved to."""

    OFF = "off"
    ADVISE = "advise"
    ACT = "act"


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What the main pool's plan was made for, and expects of a replica; 0: it does not say.

    `concurrency`: requests in flight on a replica, at which `ttft_s` and `tpot_s` are expected.
    """

    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    requests_per_s: float = 0.0
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    concurrency: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ReplanParams:
    """`band`: a ratio of seen to planned outside [1/band, band] drifts.

    `hold_s`: for how long without a break. `cooldown_s`: between two proposals. `min_requests`:
    with fewer finished requests behind it a mean says nothing.
    """

    mode: ReplanMode = ReplanMode.OFF
    band: float = 1.5
    hold_s: float = 300.0
    cooldown_s: float = 3600.0
    min_requests: int = 100
    planned: Planned = field(default_factory=Planned)

    def __post_init__(self) -> None:
        above("replan.band", self.band, 1.0)
        at_least("replan.hold_s", self.hold_s, 0.0)
        at_least("replan.cooldown_s", self.cooldown_s, 0.0)
        at_least("replan.min_requests", self.min_requests, 1)
