"""How is a caller told that its request was degraded? Two headers on every answer."""

from __future__ import annotations

from autoscaler.grant import Granted
from autoscaler.snapshot import Tier

TIER_HEADER = "X-Shardwise-Tier"
DEGRADED_HEADER = "X-Shardwise-Degraded"


def headers(granted: Granted, *, tier: Tier) -> dict[str, str]:
    """The tier, and what was changed if anything was."""
    changed = {DEGRADED_HEADER: ", ".join(granted.changes)} if granted.changes else {}
    return {TIER_HEADER: str(int(tier)), **changed}
