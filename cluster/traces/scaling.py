"""How would a trace look at another rate, length, mix or size?

Every function takes requests and yields requests in order of arrival, one at a time; they chain:

    limit(scale_rate(cut(trace, start_s=600.0, end_s=1200.0), 2.0), 10_000)

What is drawn is drawn from a seed. Copies of requests are other users: their blocks are renamed
together, so a copy shares prefixes with its fellow copies as the originals do among themselves, and
the share of blocks reused stays what it was.

Invariant: arrivals never fall.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import numpy as np

from cluster.errors import InputError
from cluster.priority import Priority
from cluster.traces.request import MOST_TOKENS, TraceRequest

_BLOCK = 4096  # random numbers drawn at once


def scale_rate(requests: Iterable[TraceRequest], factor: float) -> Iterator[TraceRequest]:
    """The same requests at `factor` times the rate: time is compressed."""
    _above_zero("rate factor", factor)
    return (request._replace(arrival_s=request.arrival_s / factor) for request in requests)


def scale_time(requests: Iterable[TraceRequest], factor: float) -> Iterator[TraceRequest]:
    """The same requests with gaps `factor` times as long."""
    _above_zero("time factor", factor)
    return (request._replace(arrival_s=request.arrival_s * factor) for request in requests)


def sample(requests: Iterable[TraceRequest], share: float, *, seed: int) -> Iterator[TraceRequest]:
    """`share` times as many requests in the same time.

    Below 1 each request is kept with that chance. Above 1 each is kept and copied share - 1 times
    on average; copies come at random moments before the next request.
    """
    _above_zero("share", share)
    return _sampled(requests, share, seed)


def cut(
    requests: Iterable[TraceRequest], *, start_s: float, end_s: float = math.inf
) -> Iterator[TraceRequest]:
    """The requests of [start_s, end_s), counted from `start_s`."""
    if not 0.0 <= start_s < end_s:
        raise InputError(f"a cut from {start_s:g} s to {end_s:g} s; it must start at 0 s or later.")
    return _cut(requests, start_s, end_s)


def limit(requests: Iterable[TraceRequest], count: int) -> Iterator[TraceRequest]:
    """The first `count` requests."""
    if count < 1:
        raise InputError(f"a limit of {count} requests; it must be at least 1.")
    return islice(requests, count)


def scale_lengths(
    requests: Iterable[TraceRequest],
    *,
    prompt: float = 1.0,
    output: float = 1.0,
    max_prompt: int = MOST_TOKENS,
    max_output: int = MOST_TOKENS,
) -> Iterator[TraceRequest]:
    """Lengths times a factor, rounded and clipped to 1 to the maximum.

    A shorter prompt keeps its leading blocks; what a longer one gains is shared with nobody.
    """
    _above_zero("prompt factor", prompt)
    _above_zero("output factor", output)
    if max_prompt < 1 or max_output < 1:
        raise InputError("the largest prompt and output must be at least 1 token.")
    return (
        _resized(
            request,
            min(max(round(request.prompt_tokens * prompt), 1), max_prompt),
            min(max(round(request.output_tokens * output), 1), max_output),
        )
        for request in requests
    )


def assign_priorities(
    requests: Iterable[TraceRequest], shares: Mapping[Priority, float], *, seed: int
) -> Iterator[TraceRequest]:
    """Each request in a class drawn by `shares`, which add up to 1."""
    total = math.fsum(shares.values())
    if any(not share >= 0.0 for share in shares.values()) or abs(total - 1.0) > 1e-6:
        raise InputError(
            f"the classes' shares add up to {total:g}; they must be at least 0 and add up to 1."
        )
    return _prioritised(requests, shares, seed)


def repeat(
    requests: Iterable[TraceRequest], count: int, *, period_s: float | None = None
) -> Iterator[TraceRequest]:
    """`count` requests: the trace over and over, each round a period later.

    `requests` is iterated once per round, so it may not be an iterator. The period is by default
    the last arrival plus the mean gap, which keeps the rate; a period may not be shorter than the
    last arrival.
    """
    if iter(requests) is requests:
        raise InputError("only a trace that can be read again can be repeated; pass a list of it.")
    if count < 1:
        raise InputError(f"{count} requests; there must be at least 1.")
    return islice(_rounds(requests, period_s), count)


def _sampled(requests: Iterable[TraceRequest], share: float, seed: int) -> Iterator[TraceRequest]:
    rng = np.random.Generator(np.random.PCG64(seed))
    kept, fraction = divmod(share, 1.0)
    chances = _uniforms(rng)
    waiting: TraceRequest | None = None
    copies = 0
    for request in requests:
        if waiting is not None:
            yield from _copied(waiting, copies, request.arrival_s, rng)
        waiting = request
        copies = int(kept) + (next(chances) < fraction)
    if waiting is not None:
        yield from _copied(waiting, copies, waiting.arrival_s, rng)


def _copied(
    request: TraceRequest, copies: int, before_s: float, rng: np.random.Generator
) -> Iterator[TraceRequest]:
    """The request and copies of it up to `before_s`."""
    if copies:
        yield request
    if copies > 1:
        moments = np.sort(rng.uniform(request.arrival_s, before_s, copies - 1)).tolist()
        for copy, moment in enumerate(moments, start=1):
            yield _renamed(request, copy)._replace(arrival_s=moment)


def _cut(requests: Iterable[TraceRequest], start_s: float, end_s: float) -> Iterator[TraceRequest]:
    for request in requests:
        if request.arrival_s >= end_s:
            return
        if request.arrival_s >= start_s:
            yield request._replace(arrival_s=request.arrival_s - start_s)


def _prioritised(
    requests: Iterable[TraceRequest], shares: Mapping[Priority, float], seed: int
) -> Iterator[TraceRequest]:
    classes = [name for name, share in shares.items() if share > 0.0]
    bounds = np.cumsum([shares[name] for name in classes])[:-1]
    rng = np.random.Generator(np.random.PCG64(seed))
    chances = _uniforms(rng)
    for request, chance in zip(requests, chances, strict=False):
        yield request._replace(priority=classes[int(np.searchsorted(bounds, chance, "right"))])


def _rounds(requests: Iterable[TraceRequest], period_s: float | None) -> Iterator[TraceRequest]:
    number, offset_s = 0, 0.0
    while True:
        seen, last_s = 0, 0.0
        for request in requests:
            seen += 1
            last_s = request.arrival_s
            yield _renamed(request, number)._replace(arrival_s=last_s + offset_s)
        number += 1
        offset_s += _period(seen, last_s, period_s)


def _period(seen: int, last_s: float, asked_s: float | None) -> float:
    if seen == 0:
        raise InputError("a trace without requests cannot be repeated.")
    if asked_s is None and seen > 1 and last_s > 0.0:
        return last_s * seen / (seen - 1)
    if asked_s is None or not last_s <= asked_s < math.inf or asked_s <= 0.0:
        raise InputError(
            f"a trace whose last request comes at {last_s:g} s cannot be repeated every "
            f"{'?' if asked_s is None else f'{asked_s:g}'} s; give a period at least as long."
        )
    return asked_s


def _renamed(request: TraceRequest, copy: int) -> TraceRequest:
    """The request as of the copy's users (copy 0: the originals)."""
    if copy == 0 or not request.blocks:
        return request
    return request._replace(blocks=tuple([hash((copy, block)) for block in request.blocks]))


def _resized(request: TraceRequest, prompt: int, output: int) -> TraceRequest:
    blocks = request.blocks
    if blocks and prompt < request.prompt_tokens:
        blocks = blocks[: prompt // request.block_tokens]
    return request._replace(prompt_tokens=prompt, output_tokens=output, blocks=blocks)


def _uniforms(rng: np.random.Generator) -> Iterator[float]:
    while True:
        yield from rng.random(_BLOCK).tolist()


def _above_zero(name: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        raise InputError(f"the {name} is {value:g}; it must be a finite number above 0.")
