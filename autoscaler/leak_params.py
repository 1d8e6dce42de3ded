"""When does a replica's memory count as leaking, and how is the replica replaced? Thresholds."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.checks import above, at_least


@dataclass(frozen=True, kw_only=True)
class LeakParams:
    """Growth that is a leak, and the retirement of a replica that leaks.

    `warmup_s`: after it was first seen, a replica's memory grows without that being a leak.
    `window_s`: growth has to go on for this long. `slope_bytes_per_h`: growth, of host or of
    device memory, that is a leak. `host_ceiling_bytes`, `device_ceiling_bytes`: of one replica,
    None for no ceiling; `over_s`: how long it must be above. `urgent_s`: a ceiling that will be
    reached within it is near: then a degraded service is no reason to wait. `settle_s`: until
    every gateway has heard that it is left out. `drain_s`: how long running answers are waited
    for. `rest_s`: between two retirements of one pool.
    """

    warmup_s: float = 600.0
    window_s: float = 3600.0
    slope_bytes_per_h: float = 2.0**30
    host_ceiling_bytes: float | None = None
    device_ceiling_bytes: float | None = None
    over_s: float = 30.0
    urgent_s: float = 600.0
    settle_s: float = 5.0
    drain_s: float = 900.0
    rest_s: float = 300.0

    def __post_init__(self) -> None:
        at_least("leaks.warmup_s", self.warmup_s, 0.0)
        above("leaks.window_s", self.window_s, 0.0)
        above("leaks.slope_bytes_per_h", self.slope_bytes_per_h, 0.0)
        for name in ("host_ceiling_bytes", "device_ceiling_bytes"):
            if getattr(self, name) is not None:
                above(f"leaks.{name}", getattr(self, name), 0.0)
        at_least("leaks.over_s", self.over_s, 0.0)
        at_least("leaks.urgent_s", self.urgent_s, 0.0)
        at_least("leaks.settle_s", self.settle_s, 0.0)
        at_least("leaks.drain_s", self.drain_s, self.settle_s)
        at_least("leaks.rest_s", self.rest_s, 0.0)

    def ceiling_bytes(self, kind: str) -> float | None:
        """Of `host` or `device` memory of one replica, None if there is none."""
        return self.host_ceiling_bytes if kind == "host" else self.device_ceiling_bytes
