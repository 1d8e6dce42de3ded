"""Which limits hold whatever a policy wants?

The guards shared by scaling and degradation, so that a clamp or a staleness rule exists once:
bounds, step size, freshness of an observation, and delays that a condition has to outlast.

A delay is kept as "since when has the condition held without a break" (None = it does not hold),
so a policy with a delay is still a pure function: state in, state out.

Invariants: `clamp` never leaves [minimum, maximum]; an observation that is missing, old, or holds
a NaN, an infinity or a negative number is unknown, and unknown is never read as zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


def clamp(value: int, *, minimum: int, maximum: int) -> int:
    """`value` moved into [minimum, maximum]."""
    return max(minimum, min(maximum, value))


def limit_step(current: int, desired: int, *, up: int, down: int) -> int:
    """`desired`, but at most `up` above or `down` below `current`."""
    return clamp(desired, minimum=current - down, maximum=current + up)


def fault(
    observed_s: float | None, values: Iterable[float], *, now_s: float, stale_after_s: float
) -> str | None:
    """Why an observation cannot be used, or None if it can.

    `observed_s` is None if there is no observation. Clocks of other nodes may run ahead, so an
    observation from the future counts as fresh within the same limit.
    """
    if observed_s is None:
        return "missing"
    if not abs(now_s - observed_s) <= stale_after_s:
        return "stale"
    if not all(math.isfinite(value) and value >= 0.0 for value in values):
        return "not a number"
    return None


def since(since_s: float | None, *, holds: bool, now_s: float) -> float | None:
    """Since when a condition has held without a break, given since when it had held before."""
    if not holds:
        return None
    return now_s if since_s is None else since_s


def held(since_s: float | None, delay_s: float, *, now_s: float) -> bool:
    """Whether a condition has held for at least `delay_s`."""
    return since_s is not None and now_s - since_s >= delay_s
