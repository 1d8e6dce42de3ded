"""What a live controller has seen and decided: its log answers however busy the machine is."""

from __future__ import annotations

import json
from typing import Any

from tests.live.instance import LiveInstance


def ticks(service: LiveInstance) -> list[dict[str, Any]]:
    """All ticks so far."""
    *lines, _ = (service.home / "instance" / "decisions.jsonl").read_text().split("\n")
    return [tick for line in lines if (tick := json.loads(line))["kind"] == "tick"]


def decided(service: LiveInstance, action: str) -> list[dict[str, Any]]:
    """All decisions of a kind."""
    return [d for tick in ticks(service) for d in tick["decisions"] if d["action"] == action]


def main_pool(service: LiveInstance) -> dict[str, Any]:
    """The main pool as it was seen last; empty while it is unknown."""
    pools = ticks(service)[-1]["snapshot"]["pools"]
    return next((pool for pool in pools if pool["pool"] == "main"), {})


def replicas(service: LiveInstance) -> dict[str, dict[str, Any]]:
    """Its replicas, by id."""
    return {replica["replica_id"]: replica for replica in main_pool(service).get("replicas", ())}
