"""Which requests does a trace made up hold? Arrivals × lengths (× shared prefixes).

    SyntheticTrace(arrivals=poisson(rate=5.0), lengths=Independent(Fixed(1024), Exponential(256)),
                   duration_s=600.0)

Arrivals, lengths and prefixes are drawn from three streams of one seed, so changing the lengths
leaves the arrivals as they were. Iterating twice gives the same requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from cluster.errors import InputError
from cluster.traces.arrivals import ArrivalProcess, Floats
from cluster.traces.lengths import RequestLengths
from cluster.traces.request import TraceRequest

PREFIX_BLOCK_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class Prefixes:
    """`share` of the requests begin with the prefix of `tokens` tokens of one of `groups` groups.

    Groups are as likely as each other. A prompt shorter than its prefix holds only its beginning.
    """

    share: float
    tokens: int
    groups: int

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise InputError(f"a share of {self.share:g} with a prefix; it must be within 0 to 1.")
        if self.tokens < PREFIX_BLOCK_TOKENS:
            raise InputError(
                f"prefixes of {self.tokens} tokens; they must hold at least one block of "
                f"{PREFIX_BLOCK_TOKENS} tokens."
            )
        if self.groups < 1:
            raise InputError(f"{self.groups} groups with a prefix; there must be at least 1.")


@dataclass(frozen=True, kw_only=True)
class SyntheticTrace:
    """A trace that ends after `duration_s` or `count` requests, or with its arrivals."""

    arrivals: ArrivalProcess
    lengths: RequestLengths
    duration_s: float = math.inf
    count: int | None = None
    prefixes: Prefixes | None = None
    seed: int = 0
    name: str = "synthetic"
    format: str = "synthetic"

    def __post_init__(self) -> None:
        if not self.duration_s > 0.0:
            raise InputError(f"a trace of {self.duration_s:g} s; it must be longer than 0 s.")
        if self.count is not None and self.count < 1:
            raise InputError(f"a trace of {self.count} requests; it must have at least 1.")
        if self.seed < 0:
            raise InputError(f"seed is {self.seed}; it must be a whole number of at least 0.")
        endless = math.isinf(self.arrivals.expected_requests) and math.isinf(self.duration_s)
        if endless and self.count is None:
            raise InputError("the trace would never end: give a duration or a count.")

    @property
    def skipped(self) -> Mapping[str, int]:
        """Nothing is left out."""
        return {}

    def __iter__(self) -> Iterator[TraceRequest]:
        times_rng, lengths_rng, prefix_rng = (
            np.random.Generator(np.random.PCG64(seed))
            for seed in np.random.SeedSequence(self.seed).spawn(3)
        )
        plain = self._plain(times_rng, lengths_rng)
        if self.prefixes is None:
            return plain
        return with_prefixes(plain, self.prefixes, prefix_rng)

    def _plain(
        self, times_rng: np.random.Generator, lengths_rng: np.random.Generator
    ) -> Iterator[TraceRequest]:
        for times in self._times(times_rng):
            prompts, outputs = self.lengths.draw(lengths_rng, len(times))
            for arrival, prompt, output in zip(
                times.tolist(), prompts.tolist(), outputs.tolist(), strict=True
            ):
                yield TraceRequest(arrival, prompt, output)

    def _times(self, rng: np.random.Generator) -> Iterator[Floats]:
        """Blocks of times up to the trace's end."""
        left = math.inf if self.count is None else self.count
        for times in self.arrivals.times(rng):
            kept = times[: int(np.searchsorted(times, self.duration_s))]
            kept = kept[: int(min(left, len(kept)))]
            left -= len(kept)
            if len(kept):
                yield kept
            if left == 0 or float(times[-1]) >= self.duration_s:
                return


def with_prefixes(
    requests: Iterator[TraceRequest], prefixes: Prefixes, rng: np.random.Generator
) -> Iterator[TraceRequest]:
    """The requests with their prompts' blocks: shared ones below -1, own ones from 0 on.

    Python hashes -1 as it hashes -2, so -1 is left out: blocks are renamed by `hash`.
    """
    blocks = prefixes.tokens // PREFIX_BLOCK_TOKENS
    own = 0
    for request in requests:
        whole = request.prompt_tokens // PREFIX_BLOCK_TOKENS
        shared = 0
        first = 0
        if rng.random() < prefixes.share:
            shared = min(whole, blocks)
            first = -2 - blocks * int(rng.integers(prefixes.groups))
        begun = own
        own += whole - shared
        yield request._replace(
            blocks=(*range(first, first - shared, -1), *range(begun, own)),
            block_tokens=PREFIX_BLOCK_TOKENS,
        )
