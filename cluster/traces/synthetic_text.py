"""Which trace does `poisson:rate=5,duration=10min,isl=1024,osl=lognormal(256,1)` mean?

    PROCESS:KEY=VALUE,KEY=VALUE,...

    poisson:rate=5              gamma:rate=5,cv=3     weibull:rate=5,cv=2     constant:rate=5
    piecewise:phases=60s@5+30s@0+10s@40      (DURATION@RATE, a Poisson process in each phase)

Keys of every process: `isl` and `osl` (tokens of prompt and output: a number, or fixed(n),
uniform(a,b), lognormal(mean,cv), exponential(mean)), `duration` (10min; bare numbers are seconds),
`count`, `seed`, and `prefix=SHARE:TOKENS:GROUPS`. Rates are requests/s.

Invariant: every problem is an InputError naming the key and what is known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cluster.errors import ConfigError, InputError, UnknownNameError
from cluster.traces.arrivals import ARRIVALS, ArrivalProcess, Phase
from cluster.traces.lengths import LENGTHS, Fixed, Independent, LengthLaw
from cluster.traces.synthetic import Prefixes, SyntheticTrace

_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?")
_DURATION = re.compile(rf"({_NUMBER.pattern})\s*([a-z]*)")
_LAW = re.compile(r"([a-z]+)\(([^()]*)\)")
_COMMA = re.compile(r",(?![^(]*\))")  # one inside brackets parts nothing
_EXAMPLE = "poisson:rate=5,duration=10min,isl=1024,osl=256"

# What a key's value becomes; the value is of the kind that the key's owner expects.
_Parser = Callable[[str], Any]


def parse_synthetic(text: str) -> SyntheticTrace:
    """The trace that `text` describes. Raises InputError."""
    process, _, rest = text.strip().partition(":")
    process = process.strip()
    if process not in _PROCESSES:
        raise UnknownNameError(
            kind="arrival process",
            name=process,
            known=_PROCESSES,
            hint=f"Write a trace like {_EXAMPLE}.",
        )
    make, own = _PROCESSES[process]
    cells = _cells(text, rest, known=own | _COMMON, process=process)
    missing = [key for key in (*own, "isl", "osl") if key not in cells]
    if missing:
        raise ConfigError(
            source=f"trace '{text}'",
            field=missing[0],
            problem="is missing.",
            fix=f"add {', '.join(f'{key}=…' for key in missing)}.",
        )
    values = {}
    for key, cell in cells.items():
        with _about(text, key):
            values[key] = (own | _COMMON)[key](cell)
    with _about(text, ""):
        return SyntheticTrace(
            arrivals=make(**{key: values[key] for key in own}),
            lengths=Independent(values["isl"], values["osl"]),
            duration_s=values.get("duration", math.inf),
            count=values.get("count"),
            prefixes=values.get("prefix"),
            seed=values.get("seed", 0),
            name=text.strip(),
        )


@contextmanager
def _about(text: str, key: str) -> Iterator[None]:
    """Errors inside are about this key of this text."""
    try:
        yield
    except InputError as error:
        raise ConfigError(source=f"trace '{text}'", field=key, problem=str(error)) from error


def _cells(text: str, rest: str, *, known: Mapping[str, _Parser], process: str) -> dict[str, str]:
    """Value by key, each known and named once."""
    found: dict[str, str] = {}
    for part in _COMMA.split(rest):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key and not value:
            continue
        if not equals or not value:
            raise ConfigError(
                source=f"trace '{text}'",
                field=key,
                problem=f"'{part.strip()}' is not KEY=VALUE.",
                fix=f"write a trace like {_EXAMPLE}.",
            )
        if key not in known:
            raise UnknownNameError(kind=f"key of {process} traces", name=key, known=known)
        if key in found:
            raise ConfigError(
                source=f"trace '{text}'", field=key, problem="is given twice.", fix="keep one."
            )
        found[key] = value
    return found


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise InputError(f"'{text}' is not a number of at least 0; write one such as 2.5.")
    return float(text)


def _whole(text: str) -> int:
    value = _number(text)
    if not value.is_integer() or value > 1e12:
        raise InputError(f"'{text}' is not a whole number; write one such as 1000.")
    return int(value)


def _duration(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if not match or match.group(2) not in _UNITS:
        units = ", ".join(unit for unit in _UNITS if unit)
        raise InputError(f"'{text}' is not a duration; write a number and one of {units}.")
    return float(match.group(1)) * _UNITS[match.group(2)]


def _lengths(text: str) -> LengthLaw:
    """A number of tokens, or a law with its numbers in brackets."""
    if _NUMBER.fullmatch(text):
        return Fixed(_number(text))
    shapes = ", ".join(f"{name}({','.join(numbers)})" for name, (_, numbers) in LENGTHS.items())
    match = _LAW.fullmatch(text)
    if not match or match.group(1) not in LENGTHS:
        raise InputError(f"'{text}' is no law of lengths; write tokens such as 1024, or {shapes}.")
    make, numbers = LENGTHS[match.group(1)]
    given = [cell.strip() for cell in match.group(2).split(",")]
    if len(given) != len(numbers):
        raise InputError(
            f"'{text}' has {len(given)} numbers; write {match.group(1)}({','.join(numbers)})."
        )
    return make(*(_number(cell) for cell in given))


def _phases(text: str) -> tuple[Phase, ...]:
    phases = []
    for part in text.split("+"):
        duration, at, rate = part.partition("@")
        if not at:
            raise InputError(
                f"'{part}' is not DURATION@RATE; write phases like 60s@5+30s@0+10s@40."
            )
        phases.append(Phase(_duration(duration.strip()), _number(rate.strip())))
    return tuple(phases)


def _prefixes(text: str) -> Prefixes:
    given = text.split(":")
    if len(given) != 3:
        raise InputError(f"'{text}' is not SHARE:TOKENS:GROUPS; write prefix=0.5:512:20.")
    share, tokens, groups = given
    return Prefixes(share=_number(share), tokens=_whole(tokens), groups=_whole(groups))


_COMMON: dict[str, _Parser] = {
    "isl": _lengths,
    "osl": _lengths,
    "duration": _duration,
    "count": _whole,
    "seed": _whole,
    "prefix": _prefixes,
}
_PROCESSES: dict[str, tuple[Callable[..., ArrivalProcess], dict[str, _Parser]]] = {
    **{name: (make, dict.fromkeys(keys, _number)) for name, (make, keys) in ARRIVALS.items()},
    "piecewise": (ArrivalProcess, {"phases": _phases}),
}
