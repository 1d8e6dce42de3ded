"""What breaks, and when? A script of failures.

    crash@120s:main/1            the replica's process dies; its pool starts another
    freeze@60s:main/0,for=30s    no progress and no reports; without `for`, until it is replaced
    hang@60s:main/0,for=10min    no progress, but its reports go on: only the controller can notice
    slow@10s:main/2,for=1min,factor=3    every step takes three times as long
    crash@90s:node/0             every replica of a node

A replica is named by its pool and its number in order of creation, from 0.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from cluster.errors import InputError

NODE = "node"
_SCRIPT = re.compile(
    r"(?P<kind>[a-z]+)@(?P<at>[0-9.]+)(?P<unit>ms|s|min|h)?:(?P<pool>[a-z]+)/(?P<number>\d+)"
    r"(?P<rest>(?:,[a-z]+=[^,]+)*)"
)
_SPAN = re.compile(r"([0-9.]+)(ms|s|min|h)?")
_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, None: 1.0, "": 1.0}
_EXAMPLE = "write e.g. crash@120s:main/1, freeze@60s:main/0,for=30s, slow@10s:main/2,factor=3"


class Fault(StrEnum):
    """Kinds of failure."""

    CRASH = "crash"
    FREEZE = "freeze"
    HANG = "hang"
    SLOW = "slow"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One failure. `pool` may be `node`: then `number` is a node's. `for_s`: infinite = for good.

    `factor`: of step times, for SLOW.
    """

    kind: Fault
    at_s: float
    pool: str
    number: int
    for_s: float = math.inf
    factor: float = 2.0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("at", self.at_s, 0.0),
            ("for", self.for_s, 0.0),
            ("factor", self.factor, 1.0),
        ):
            if not value >= least:
                raise InputError(f"failure {self.kind}: {name} is {value}, at least {least:g}.")
        if self.kind is Fault.HANG and math.isinf(self.for_s):
            raise InputError(
                "failure hang: nobody but the controller may end it, so it needs a length. "
                "Fix: write e.g. hang@60s:main/0,for=10min."
            )


def parse_failure(text: str) -> Failure:
    """A failure from its words. Raises InputError."""
    match = _SCRIPT.fullmatch(text.strip())
    if match is None or match["kind"] not in list(Fault):
        raise InputError(f"'{text}' is no failure ({', '.join(Fault)}). Fix: {_EXAMPLE}.")
    values: dict[str, float] = {}
    for part in filter(None, match["rest"].split(",")):
        name, _, value = part.partition("=")
        if name not in ("for", "factor"):
            raise InputError(
                f"'{text}': '{name}' is not known; for and factor are. Fix: {_EXAMPLE}."
            )
        values["for_s" if name == "for" else name] = _number(value, text=text)
    return Failure(
        kind=Fault(match["kind"]),
        at_s=_number(match["at"] + (match["unit"] or ""), text=text),
        pool=match["pool"],
        number=int(match["number"]),
        **values,
    )


def _number(value: str, *, text: str) -> float:
    span = _SPAN.fullmatch(value)
    try:
        return float(span[1]) * _UNITS[span[2]] if span else float("nan")
    except ValueError as error:
        raise InputError(f"'{text}': '{value}' is no number. Fix: {_EXAMPLE}.") from error
