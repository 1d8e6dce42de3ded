"""What do callers of a real engine see if a trace's requests come in real time?

Requests are sent at their arrival times, each with a prompt of its length and exactly as many
tokens to generate as the trace says. Prompts are random but the same on every run; equal block
hashes become equal tokens, so that a prefix cache, where one is on, finds what the trace shares.
Invariants: nothing is sent early; prompts are made before the clock starts; cancelling the replay
aborts what is in flight.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.errors import InputError
from cluster.traces.request import TraceRequest
from serving.engine.live_engine import LiveEngine

_WARM_PROMPTS = (16, 64)
_FIRST_ID = 100  # below are control tokens
_SETTLE_S = 0.05


@dataclass(frozen=True, kw_only=True)
class ReplayRecord:
    """One request, as its caller saw it: seconds from the start of the replay.

    `arrival_s` is when it was due, `sent_s` when it was sent: their difference is our own delay.
    """

    index: int
    arrival_s: float
    sent_s: float
    first_token_s: float
    finish_s: float
    prompt_tokens: int
    output_tokens: int

    @property
    def ttft_s(self) -> float:
        """From when it was due to its first token."""
        return self.first_token_s - self.arrival_s

    @property
    def e2e_s(self) -> float:
        """From when it was due to its last token."""
        return self.finish_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """Per token after the first; 0 where there is none."""
        if self.output_tokens < 2:
            return 0.0
        return (self.finish_s - self.first_token_s) / (self.output_tokens - 1)


async def replay(
    engine: LiveEngine, requests: Iterable[TraceRequest], *, seed: int = 0
) -> list[ReplayRecord]:
    """Send the requests at their times, and say what came of them, in the trace's order.

    Raises InputError, before anything is sent, for a request longer than the engine takes.
    """
    trace = list(requests)
    _check(trace, engine)
    prompts = [
        prompt_of(request, number=number, seed=seed, vocabulary=engine.vocabulary)
        for number, request in enumerate(trace)
    ]
    await warm_up(engine)
    start = time.monotonic() + _SETTLE_S
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_send(engine, request, prompt, index=index, start=start))
            for index, (request, prompt) in enumerate(zip(trace, prompts, strict=True))
        ]
    return [task.result() for task in tasks]


async def warm_up(engine: LiveEngine) -> None:
    """A few requests alone and together: first steps allocate, and are slow."""
    rng = random.Random(0)
    for tokens in _WARM_PROMPTS:
        prompt = random_prompt(rng, tokens, vocabulary=engine.vocabulary)
        await asyncio.gather(*(engine.ask(prompt, output=4) for _ in range(2)))


def prompt_of(request: TraceRequest, *, number: int, seed: int, vocabulary: int) -> list[int]:
    """Token ids of a request's prompt: its blocks by their hashes, the rest by its number."""
    ids: list[int] = []
    for block in request.blocks:
        rng = random.Random(f"block {seed} {block}")
        ids.extend(random_prompt(rng, request.block_tokens, vocabulary=vocabulary))
    ids = ids[: request.prompt_tokens]
    rng = random.Random(f"request {seed} {number}")
    ids.extend(random_prompt(rng, request.prompt_tokens - len(ids), vocabulary=vocabulary))
    return ids


def random_prompt(rng: random.Random, tokens: int, *, vocabulary: int) -> list[int]:
    """`tokens` ids of the vocabulary, none of them a control token."""
    return rng.choices(range(min(_FIRST_ID, vocabulary - 1), vocabulary), k=tokens)


async def _send(
    engine: LiveEngine, request: TraceRequest, prompt: Sequence[int], *, index: int, start: float
) -> ReplayRecord:
    due = start + request.arrival_s
    while (wait := due - time.monotonic()) > 0.0:
        await asyncio.sleep(wait)
    heard = await engine.ask(prompt, output=request.output_tokens)
    return ReplayRecord(
        index=index,
        arrival_s=request.arrival_s,
        sent_s=heard.sent_s - start,
        first_token_s=heard.heard_s[0] - start,
        finish_s=heard.heard_s[-1] - start,
        prompt_tokens=len(prompt),
        output_tokens=heard.tokens,
    )


def _check(trace: Sequence[TraceRequest], engine: LiveEngine) -> None:
    limit = engine.settings.max_model_len
    for index, request in enumerate(trace):
        tokens = request.prompt_tokens + request.output_tokens
        if tokens > limit:
            raise InputError(
                f"request {index} of the trace has {tokens} tokens, and the engine's sequences at "
                f"most {limit}. Fix: start it with a longer max_model_len, or cut the trace."
            )
