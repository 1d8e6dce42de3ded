"""Callers who come when they come, whatever the service is at, and what each of them got."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What everybody asks: streamed text of a fixed length."""

    model: str
    output: int
    words: int = 24

    def body(self, number: int) -> dict[str, object]:
        prompt = f"{number} " + "once more " * (self.words // 2)
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": self.output,
            "ignore_eos": True,
            "stream": True,
        }


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One caller's account, in seconds: `came_s` since the load began, the others since then.

    `ended`: how the stream did: `[DONE]`, or what was there in its place.
    """

    priority: str
    came_s: float
    status: int
    ttft_s: float | None
    total_s: float
    retry_after: str | None
    ended: str

    @property
    def first_s(self) -> float | None:
        """When the first token came, since the load began."""
        return None if self.ttft_s is None else self.came_s + self.ttft_s


async def poisson(
    client: httpx.AsyncClient,
    ask: Ask,
    *,
    rate: float,
    duration_s: float,
    vip_share: float,
    seed: int = 0,
) -> list[Seen]:
    """So many callers a second for a while; returns when each has its answer."""
    draw = random.Random(seed)
    began_s = time.monotonic()
    callers: list[asyncio.Task[Seen]] = []
    due_s = draw.expovariate(rate)
    while due_s < duration_s:
        await asyncio.sleep(max(0.0, began_s + due_s - time.monotonic()))
        priority = "vip" if draw.random() < vip_share else "standard"
        callers.append(
            asyncio.create_task(
                call(client, ask, number=len(callers), priority=priority, began_s=began_s)
            )
        )
        due_s += draw.expovariate(rate)
    return list(await asyncio.gather(*callers))


async def closed(
    client: httpx.AsyncClient, ask: Ask, *, width: int, duration_s: float
) -> list[Seen]:
    """So many callers who ask again when they are answered."""
    began_s = time.monotonic()

    async def caller(number: int) -> list[Seen]:
        seen: list[Seen] = []
        while time.monotonic() < began_s + duration_s:
            one = await call(
                client,
                ask,
                number=1000 * (number + 1) + len(seen),
                priority="standard",
                began_s=began_s,
            )
            seen.append(one)
        return seen

    return [one for seen in await asyncio.gather(*map(caller, range(width))) for one in seen]


async def call(
    client: httpx.AsyncClient, ask: Ask, *, number: int, priority: str, began_s: float
) -> Seen:
    """Ask once."""
    came_s = time.monotonic()
    first_s, last = None, ""
    async with client.stream(
        "POST",
        "/v1/completions",
        json=ask.body(number),
        headers={"X-Shardwise-Priority": priority},
    ) as response:
        async for line in response.aiter_lines():
            if line and response.status_code == 200:
                first_s = first_s or time.monotonic()
            last = line.removeprefix("data: ") or last
    return Seen(
        priority=priority,
        came_s=came_s - began_s,
        status=response.status_code,
        ttft_s=None if first_s is None else first_s - came_s,
        total_s=time.monotonic() - came_s,
        retry_after=response.headers.get("Retry-After"),
        ended=last,
    )


def overtaken(vip: Seen, all_seen: Sequence[Seen]) -> int:
    """Others who had come before this one and got their first token after it."""
    if vip.first_s is None:
        return 0
    return sum(
        one.priority != vip.priority
        and one.came_s < vip.came_s
        and one.first_s is not None
        and one.first_s > vip.first_s
        for one in all_seen
    )
