"""What did a simulation cost in all? Replicas and devices added up at its end."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.sim.fleet import Fleet
from cluster.sim.record import Outcome, Record


def outcome_of(
    record: Record, fleets: Mapping[str, Fleet], now_s: float, *, unfinished: int
) -> Outcome:
    """The outcome at `now_s`, with `unfinished` requests; call it once, at the end."""
    device_s = {name: fleet.device_seconds(now_s) for name, fleet in fleets.items()}
    prices = {name: fleet.setup.price_per_device_hour for name, fleet in fleets.items()}
    record.count("preemptions", sum(fleet.all_preemptions for fleet in fleets.values()))
    priced = all(price is not None for price in prices.values())
    return Outcome(
        record=record,
        duration_s=now_s,
        device_hours=sum(device_s.values()) / 3600.0,
        cost=sum(device_s[name] / 3600.0 * (prices[name] or 0.0) for name in fleets)
        if priced
        else None,
        replicas={
            name: (fleet.most_ready, fleet.mean_ready(now_s)) for name, fleet in fleets.items()
        },
        unfinished=unfinished,
    )
