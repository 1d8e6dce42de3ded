"""What are requests like, by what has been served? Counted by gateways, smoothed by the controller.

A gateway counts from its start and never forgets, so a report that is lost loses nothing. The
controller takes the differences and lets what is old fade with a half-life; rates and means are
quotients of sums that fade alike, so they are right from the beginning on, only less sure.

Invariant: a gateway that is new, or was restarted, counts from what it first reports.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, fields

from autoscaler.snapshot import WorkloadObservation


@dataclass
class Served:
    """Sums over a pool's requests. Tokens, seconds.

    `arrived`: refused ones included. `finished`: came to their end, with `prompt_tokens` and
    `output_tokens`. `streams`: of those, with `ttft_s` from being placed to the first reply, and
    `decode_s` from there to the end in which `decode_tokens` came.
    """

    arrived: float = 0.0
    finished: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    streams: float = 0.0
    ttft_s: float = 0.0
    decode_s: float = 0.0
    decode_tokens: float = 0.0

    def ended(self, *, prompt: int, output: int) -> None:
        """An answer has come to its end."""
        self.finished += 1
        self.prompt_tokens += prompt
        self.output_tokens += output

    def streamed(self, *, ttft_s: float, decode_s: float, tokens: int) -> None:
        """It was a stream of so many tokens."""
        self.streams += 1
        self.ttft_s += ttft_s
        self.decode_s += decode_s
        self.decode_tokens += max(0, tokens - 1)


_NAMES = tuple(each.name for each in fields(Served))


@dataclass
class _Sums:
    """Of one pool, fading. `time_s`: seconds looked at; `in_flight_s`: requests × seconds."""

    served: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_NAMES, 0.0))
    time_s: float = 0.0
    in_flight_s: float = 0.0
    ready_s: float = 0.0


class WorkloadBook:
    """The controller's. `half_life_s`: after which something seen counts half."""

    def __init__(self, *, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._last: dict[tuple[str, str], tuple[float, ...]] = {}
        self._sums: dict[str, _Sums] = {}
        self._looked_s: float | None = None

    def look(
        self,
        reports: Mapping[str, Mapping[str, Served]],
        *,
        in_flight: Mapping[str, float],
        ready: Mapping[str, int],
        now_s: float,
    ) -> None:
        """What gateways report now: of each, by pool; requests in flight and replicas by pool."""
        gone_s = 0.0 if self._looked_s is None else max(0.0, now_s - self._looked_s)
        self._looked_s = now_s
        kept = 0.5 ** (gone_s / self._half_life_s)
        for sums in self._sums.values():
            _fade(sums, kept)
        for gateway, pools in reports.items():
            for pool, served in pools.items():
                self._add(gateway, pool, astuple(served))
        for pool, replicas in ready.items():
            sums = self._sums.setdefault(pool, _Sums())
            sums.time_s += gone_s
            sums.in_flight_s += in_flight.get(pool, 0.0) * gone_s
            sums.ready_s += replicas * gone_s
        self._last = {key: last for key, last in self._last.items() if key[0] in reports}

    def observations(
        self, pools: Iterable[str], *, now_s: float
    ) -> tuple[WorkloadObservation, ...]:
        """What the pools' requests are like. Nothing of a pool of which nothing was seen."""
        return tuple(
            _observation(pool, self._sums[pool], now_s=now_s)
            for pool in pools
            if pool in self._sums and self._sums[pool].time_s > 0.0
        )

    def _add(self, gateway: str, pool: str, served: tuple[float, ...]) -> None:
        before = self._last.get((gateway, pool))
        self._last[gateway, pool] = served
        if before is None:
            return
        sums = self._sums.setdefault(pool, _Sums()).served
        for name, now, then in zip(_NAMES, served, before, strict=True):
            sums[name] += max(0.0, now - then)


def _fade(sums: _Sums, kept: float) -> None:
    for name in _NAMES:
        sums.served[name] *= kept
    sums.time_s *= kept
    sums.in_flight_s *= kept
    sums.ready_s *= kept


def _observation(pool: str, sums: _Sums, *, now_s: float) -> WorkloadObservation:
    served = sums.served
    return WorkloadObservation(
        pool=pool,
        observed_s=now_s,
        requests=served["finished"],
        requests_per_s=served["arrived"] / sums.time_s,
        prompt_tokens=_mean(served["prompt_tokens"], served["finished"]),
        output_tokens=_mean(served["output_tokens"], served["finished"]),
        streams=served["streams"],
        ttft_s=_mean(served["ttft_s"], served["streams"]),
        tpot_s=_mean(served["decode_s"], served["decode_tokens"]),
        in_flight=_mean(sums.in_flight_s, sums.ready_s),
    )


def _mean(total: float, count: float) -> float:
    return total / count if count > 0.0 else math.nan
