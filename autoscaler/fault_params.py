"""When does a replica count as faulty, and a start as failed? The thresholds, with units."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.checks import above, at_least


@dataclass(frozen=True, kw_only=True)
class FaultParams:
    """Rules about single replicas and about starts; docs/policies.md has them as tables.

    `stall_s`: how long a replica may owe a token without a step of its engine. `patience_s`: the
    same at most, where slower steps have been seen (twice the slowest of the last `memory_s`).
    `unheard_s`: how long one that Serve routes to may never have reported. `hold_s`: how much
    longer a stall must last while most of the pool looks stalled, or while the observers themselves
    are late; late is a report or a tick that is more than `late_s` overdue, and a late tick counts
    for `settle_s`.
    `max_at_once`: replicas of a pool under restart at a time. `retry_s`: when one that is still
    there is ordered again.

    `start_limit_s`: longest start. `failed_starts` within `window_s` are a crash loop; a replica
    that dies within `young_s` of its first answer counts as a failed start. Then no more is asked
    for during `backoff_s`, twice as long each time, `backoff_max_s` at most.
    """

    stall_s: float = 10.0
    patience_s: float = 20.0
    memory_s: float = 600.0
    unheard_s: float = 20.0
    hold_s: float = 15.0
    late_s: float = 3.0
    settle_s: float = 5.0
    max_at_once: int = 2
    retry_s: float = 30.0
    start_limit_s: float = 900.0
    failed_starts: int = 3
    window_s: float = 600.0
    young_s: float = 10.0
    backoff_s: float = 10.0
    backoff_max_s: float = 600.0

    def __post_init__(self) -> None:
        above("faults.stall_s", self.stall_s, 0.0)
        at_least("faults.patience_s", self.patience_s, self.stall_s)
        at_least("faults.memory_s", self.memory_s, 0.0)
        above("faults.unheard_s", self.unheard_s, 0.0)
        at_least("faults.hold_s", self.hold_s, 0.0)
        above("faults.late_s", self.late_s, 0.0)
        at_least("faults.settle_s", self.settle_s, 0.0)
        at_least("faults.max_at_once", self.max_at_once, 1)
        above("faults.retry_s", self.retry_s, 0.0)
        above("faults.start_limit_s", self.start_limit_s, 0.0)
        at_least("faults.failed_starts", self.failed_starts, 1)
        above("faults.window_s", self.window_s, 0.0)
        at_least("faults.young_s", self.young_s, 0.0)
        above("faults.backoff_s", self.backoff_s, 0.0)
        at_least("faults.backoff_max_s", self.backoff_max_s, self.backoff_s)
