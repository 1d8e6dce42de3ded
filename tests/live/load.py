"""A bounded load from callers in a closed loop, and what they got."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx


@dataclass
class Outcome:
    """What the callers saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    retry_after: list[str] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)


@dataclass
class Load:
    """Keeps `callers` requests in flight until stopped or `limit_s` is over."""

    url: str
    callers: int
    limit_s: float
    outcome: Outcome = field(default_factory=Outcome)
    _stop: bool = False

    def stop(self) -> None:
        self._stop = True

    async def run(self) -> Outcome:
        until_s = time.monotonic() + self.limit_s
        async with httpx.AsyncClient(timeout=180.0) as client:
            callers = [self._caller(client, number, until_s) for number in range(self.callers)]
            await asyncio.gather(*callers)
        return self.outcome

    async def _caller(self, client: httpx.AsyncClient, number: int, until_s: float) -> None:
        body = {
            "model": "smollm2-135m-instruct",
            "messages": [{"role": "user", "content": f"Tell me a long story about {number}."}],
            "max_tokens": 48,
            "ignore_eos": True,
            "logprobs": True,
            "stream": number % 2 == 0,
        }
        while not self._stop and time.monotonic() < until_s:
            await self._ask(client, body)

    async def _ask(self, client: httpx.AsyncClient, body: dict[str, object]) -> None:
        url = f"{self.url}/v1/chat/completions"
        try:
            async with client.stream("POST", url, json=body) as response:
                text = (await response.aread()).decode()
        except httpx.HTTPError as error:
            self.outcome.broken[type(error).__name__] += 1
            return
        self.outcome.statuses[response.status_code] += 1
        for change in response.headers.get("x-shardwise-degraded", "").split(", "):
            self.outcome.changes[change.partition("=")[0]] += 1
        if response.status_code == 429:
            self.outcome.retry_after.append(response.headers.get("retry-after", ""))
            await asyncio.sleep(1.0)
        if response.status_code != 200 and "error" not in response.json():
            self.outcome.malformed.append(text[:200])
        if body["stream"] and response.status_code == 200 and '"error"' in text:
            self.outcome.broken["stream"] += 1
