"""Which loads is a gateway put under, and what is noted of each?

With an engine that answers at once the gateway is what limits; with one that takes 20 ms a token
the engine does, and a gateway shows in what it adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import uvloop

from bench.gateway_parts.answers import TOKENS, question
from bench.gateway_parts.cpu import Meter
from bench.gateway_parts.load import Tally, Target, percentile, press

PACE_MS = 20
WIDTH = 64


@dataclass(frozen=True, kw_only=True)
class Load:
    """Callers at a time, what they ask for, and for how long. `warm_s` of it does not count.

    `spread_s`: over which they begin. Answers that take as long as each other would otherwise
    come and go in step for ever, all in the same millisecond.
    """

    width: int
    stream: bool
    pace_ms: int
    seconds: float
    warm_s: float
    spread_s: float


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one load showed. `cpu_s`: of all processes of the gateway, per request."""

    requests: int
    requests_per_s: float
    tokens_per_s: float
    first_p50_s: float
    first_p99_s: float
    last_p50_s: float
    last_p99_s: float
    cpu_s: float
    elsewhere_cores: float
    failed: int
    failure: str

    @classmethod
    def of(cls, tally: Tally, *, cpu_s: float, elsewhere_cores: float) -> Reading:
        """Of a tally that holds at least one answer."""
        commonest = tally.failures.most_common(1)
        return cls(
            requests=len(tally.last_s),
            requests_per_s=tally.requests_per_s,
            tokens_per_s=tally.tokens_per_s,
            first_p50_s=percentile(tally.first_s, 0.5),
            first_p99_s=percentile(tally.first_s, 0.99),
            last_p50_s=percentile(tally.last_s, 0.5),
            last_p99_s=percentile(tally.last_s, 0.99),
            cpu_s=cpu_s / len(tally.last_s),
            elsewhere_cores=elsewhere_cores,
            failed=tally.failures.total(),
            failure=commonest[0][0] if commonest else "",
        )


Readings = dict[str, Reading]


def loads(*, quick: bool) -> dict[str, Load]:
    """By name: one caller or `WIDTH`, events or whole answers, at once or paced."""
    span_s = 1.2 if quick else 3.0
    warm_s = 0.3 if quick else 0.7

    def load(width: int, *, stream: bool, pace_ms: int) -> Load:
        spread_s = 1e-3 * pace_ms * TOKENS
        return Load(
            width=width,
            stream=stream,
            pace_ms=pace_ms,
            seconds=span_s,
            warm_s=warm_s + spread_s,
            spread_s=spread_s,
        )

    return {
        "one": load(1, stream=True, pace_ms=0),
        "whole": load(WIDTH, stream=False, pace_ms=0),
        "streamed": load(WIDTH, stream=True, pace_ms=0),
        "one_paced": load(1, stream=True, pace_ms=PACE_MS),
        "whole_paced": load(WIDTH, stream=False, pace_ms=PACE_MS),
        "streamed_paced": load(WIDTH, stream=True, pace_ms=PACE_MS),
    }


def measure(
    target: Target, plan: dict[str, Load], *, excepted: frozenset[int]
) -> Iterator[tuple[str, Reading | str]]:
    """One reading after the other, or why there is none. `excepted`: the engine's process ids."""
    for name, load in plan.items():
        body = question(target.model, stream=load.stream, pace_ms=load.pace_ms)
        meter = Meter(excepted=excepted)
        tally = uvloop.run(
            press(
                target,
                body,
                width=load.width,
                seconds=load.seconds,
                warm_s=load.warm_s,
                spread_s=load.spread_s,
            )
        )
        used = meter.used()
        if not tally.last_s:
            why = tally.failures.most_common(1)
            yield name, why[0][0] if why else "no answer came in time"
            continue
        # Of the whole run, warm-up included, as is the time it is divided by.
        share = load.seconds / used.seconds
        yield (
            name,
            Reading.of(tally, cpu_s=used.started_s * share, elsewhere_cores=used.elsewhere_cores),
        )
