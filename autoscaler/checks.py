"""Is a parameter possible? One-line checks that raise ConfigError with the limit in the message."""

from __future__ import annotations

import math

from cluster.errors import ConfigError

SOURCE = "steering parameters"


def require(condition: bool, *, field: str, problem: str) -> None:  # noqa: FBT001  reads as assert
    """Raise ConfigError about `field` unless `condition`."""
    if not condition:
        raise ConfigError(source=SOURCE, field=field, problem=problem)


def at_least(field: str, value: float, limit: float) -> None:
    """`value` is finite and >= `limit`."""
    require(
        math.isfinite(value) and value >= limit,
        field=field,
        problem=f"is {value}, it must be at least {limit:g}.",
    )


def above(field: str, value: float, limit: float) -> None:
    """`value` is finite and > `limit`."""
    require(
        math.isfinite(value) and value > limit,
        field=field,
        problem=f"is {value}, it must be above {limit:g}.",
    )


def fraction(field: str, value: float) -> None:
    """`value` is in (0, 1]."""
    require(0.0 < value <= 1.0, field=field, problem=f"is {value}, it must be in (0, 1].")
