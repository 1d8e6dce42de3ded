"""What does a tier do to a request? A pure map from (request, tier) to what is served instead.

Tiers include the ones before: 1 logprobs off, 2 output capped, 3 non-VIP requests to the lighter
model if one is ready and the request fits it, 4 non-VIP requests refused with 429. The answer says
so in its headers. No tier turns a request that could be served into an error of the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.snapshot import Tier
from cluster.priority import Priority


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the caller asked for, as far as tiers care.

    `max_tokens`: output limit, None if the caller set none. `room`: output tokens that fit the
    context. `light_room`: the same on the lighter model, None if it cannot be used.
    """

    priority: Priority
    logprobs: bool
    max_tokens: int | None
    room: int
    served_by_main: bool
    light_room: int | None = None


@dataclass(frozen=True, kw_only=True)
class Granted:
    """What the caller gets. `refused`: 429. `changes`: told in the response, in tier order."""

    logprobs: bool
    max_tokens: int | None
    light: bool = False
    refused: bool = False
    changes: tuple[str, ...] = ()


def grant(asked: Asked, *, tier: Tier, output_cap: int) -> Granted:
    """What a request gets in a tier. Requests for the light model itself are never moved."""
    yields = asked.priority is not Priority.VIP and asked.served_by_main
    if tier >= Tier.SHED and yields:
        return Granted(logprobs=asked.logprobs, max_tokens=asked.max_tokens, refused=True)
    changes: list[str] = []
    logprobs, max_tokens, light = asked.logprobs, asked.max_tokens, False
    if tier >= Tier.NO_LOGPROBS and logprobs:
        logprobs = False
        changes.append("logprobs-off")
    limit = asked.room if max_tokens is None else max_tokens
    if tier >= Tier.SHORT_OUTPUT and limit > output_cap:
        max_tokens = output_cap
        changes.append(f"max-tokens={output_cap}")
    if tier >= Tier.LIGHT_MODEL and yields and asked.light_room is not None:
        light = asked.light_room >= max(1, max_tokens or 0)
        changes += ["light-model"] if light else []
    return Granted(logprobs=logprobs, max_tokens=max_tokens, light=light, changes=tuple(changes))
