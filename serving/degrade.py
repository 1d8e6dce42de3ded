"""How is a caller told that its request was degraded? In two headers, and beside its usage.

Headers are lost on the way through many clients; usage is what they keep and log.
"""

from __future__ import annotations

import json
from typing import Any

from autoscaler.grant import Granted
from autoscaler.snapshot import Tier
from serving.messages import USAGE_ALONE, EngineReply

TIER_HEADER = "X-Shardwise-Tier"
DEGRADED_HEADER = "X-Shardwise-Degraded"


def headers(granted: Granted, *, tier: Tier) -> dict[str, str]:
    """The tier, and what was changed if anything was."""
    changed = {DEGRADED_HEADER: ", ".join(granted.changes)} if granted.changes else {}
    return {TIER_HEADER: str(int(tier)), **changed}


def with_usage(reply: EngineReply, *, changes: tuple[str, ...], tier: int) -> EngineReply:
    """A reply that holds usage, with `usage.shardwise` saying what was changed; others as is."""
    if isinstance(reply, dict):
        return _explained(reply, changes=changes, tier=tier)
    if isinstance(reply, str) and USAGE_ALONE in reply:
        event = _explained(json.loads(reply), changes=changes, tier=tier)
        return json.dumps(event, separators=(",", ":"))
    return reply


def _explained(data: dict[str, Any], *, changes: tuple[str, ...], tier: int) -> dict[str, Any]:
    if not isinstance(data.get("usage"), dict):
        return data
    told = {"tier": tier, "degraded": list(changes)}
    return {**data, "usage": {**data["usage"], "shardwise": told}}
