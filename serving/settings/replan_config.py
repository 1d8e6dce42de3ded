"""What can an operator set about re-planning?"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from serving.settings.config_section import Section


class ReplanSection(Section):
    """When the layout is searched anew, and what a move may take.

    `mode`: whether drift is looked for, a better plan only told, or moved to. `band`: a ratio of
    seen to planned outside [1/band, band] drifts; `hold_s`: for how long without a break.
    `half_life_s`: of what is seen. `min_requests`: fewer than so many finished ones say nothing.
    `cooldown_s`: between two searches. `budget_s`: of one. `min_gain`: goodput per device a new
    layout must win, as a share. `start_limit_s`, `stop_limit_s`, `canary_s`: how long new replicas
    may take to answer, old ones to end, and a first answer to come.
    """

    mode: Literal["off", "advise", "act"] = "advise"
    band: float = Field(default=1.5, gt=1)
    hold_s: float = Field(default=300.0, ge=0)
    half_life_s: float = Field(default=600.0, gt=0)
    min_requests: int = Field(default=100, ge=1)
    cooldown_s: float = Field(default=3600.0, ge=0)
    budget_s: float = Field(default=120.0, gt=0)
    min_gain: float = Field(default=0.1, ge=0)
    start_limit_s: float = Field(default=900.0, gt=0)
    stop_limit_s: float = Field(default=960.0, gt=0)
    canary_s: float = Field(default=60.0, gt=0)
