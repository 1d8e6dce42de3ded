"""How is a caller told that its request was changed? In headers, and beside its usage.

Headers are lost on the way through many clients; usage is what they keep and log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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


def told(changes: tuple[str, ...], *, tier: int) -> dict[str, Any]:
    """The same for `usage.shardwise`; nothing if nothing was changed."""
    return {"tier": tier, "degraded": list(changes)} if changes else {}


def with_usage(reply: EngineReply, told: Mapping[str, Any]) -> EngineReply:
    """A reply that holds usage, with what is told in `usage.shardwise`; others as they are."""
    if isinstance(reply, dict):
        return _explained(reply, told)
    if isinstance(reply, str) and USAGE_ALONE in reply:
        return json.dumps(_explained(json.loads(reply), told), separators=(",", ":"))
    return reply


def _explained(data: dict[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(data.get("usage"), dict):
        return data
    return {**data, "usage": {**data["usage"], "shardwise": dict(told)}}
