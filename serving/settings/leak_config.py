"""What can an operator set about replicas that leak memory?"""

from __future__ import annotations

from autoscaler.leak_params import LeakParams
from serving.settings.config_section import Section

_DEFAULTS = LeakParams()


class LeakSection(Section):
    """When a replica's memory counts as leaking; see `autoscaler.leak_params.LeakParams`.

    `*_ceiling_bytes`: of one replica with all its processes, None for no ceiling.
    """

    warmup_s: float = _DEFAULTS.warmup_s
    window_s: float = _DEFAULTS.window_s
    slope_bytes_per_h: float = _DEFAULTS.slope_bytes_per_h
    host_ceiling_bytes: float | None = None
    device_ceiling_bytes: float | None = None
    drain_s: float = _DEFAULTS.drain_s
    rest_s: float = _DEFAULTS.rest_s


def leak_params(section: LeakSection) -> LeakParams:
    """The thresholds as set. Raises ConfigError for one that cannot be."""
    return LeakParams(
        warmup_s=section.warmup_s,
        window_s=section.window_s,
        slope_bytes_per_h=section.slope_bytes_per_h,
        host_ceiling_bytes=section.host_ceiling_bytes,
        device_ceiling_bytes=section.device_ceiling_bytes,
        settle_s=min(_DEFAULTS.settle_s, section.drain_s),
        drain_s=section.drain_s,
        rest_s=section.rest_s,
    )
