"""What can an operator set about faults?"""

from __future__ import annotations

from pydantic import Field

from serving.settings.config_section import Section


class FaultsSection(Section):
    """When a replica counts as faulty, and what is done then; see docs/policies.md.

    `canary_s`: a replica of which no token was heard for so long is asked for one. `stall_s`: so
    long may it owe a token without a step of its engine; where slower steps have been seen, twice
    the slowest, but `patience_s` at most. `max_at_once`: replicas of a pool that are restarted
    together. `start_limit_s`: how long a start may take, None: 15 minutes, or five cold starts.
    `failed_starts`: so many within `window_s` are a crash loop: then no more is asked for during
    `backoff_s`, twice as long each time and `backoff_max_s` at most.
    """

    canary_s: float = Field(default=5.0, gt=0)
    stall_s: float = Field(default=10.0, gt=0)
    patience_s: float = Field(default=20.0, gt=0)
    max_at_once: int = Field(default=2, ge=1)
    start_limit_s: float | None = Field(default=None, gt=0)
    failed_starts: int = Field(default=3, ge=1)
    window_s: float = Field(default=600.0, gt=0)
    backoff_s: float = Field(default=10.0, gt=0)
    backoff_max_s: float = Field(default=600.0, gt=0)
