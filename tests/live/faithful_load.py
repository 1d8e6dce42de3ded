"""Callers who know what they should hear, and note whatever else they hear."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.live.instance import LiveInstance


@dataclass(frozen=True, kw_only=True)
class Case:
    """A body for /v1/completions and the text that answers it."""

    body: dict[str, Any]
    expected: str


@dataclass
class Account:
    """What the callers got. `wrong`: everything that is not the whole answer they expected."""

    streams: int = 0
    short: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        wrong = f"{len(self.wrong)} of them wrong" if self.wrong else "all as they should be"
        return f"{self.streams} streams and {self.short} short answers, {wrong}"


@asynccontextmanager
async def faithful_load(
    service: LiveInstance, *, streams: Sequence[Case], short: Sequence[Case]
) -> AsyncIterator[Account]:
    """One caller in a closed loop per case, as long as the context lasts and to their answers."""
    account, stop = Account(), asyncio.Event()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=service.url, headers=service.headers, timeout=600.0, limits=limits
    ) as client:
        callers = [
            *(_caller(client, case, account, stop.is_set) for case in streams),
            *(_caller(client, case, account, stop.is_set) for case in short),
        ]
        running = asyncio.gather(*callers)
        try:
            yield account
        finally:
            stop.set()
            await running


async def _caller(
    client: httpx.AsyncClient, case: Case, account: Account, stopped: Callable[[], bool]
) -> None:
    stream = bool(case.body.get("stream"))
    while not stopped():
        try:
            heard = await (_streamed if stream else _whole)(client, case.body)
        except httpx.HTTPError as error:
            heard = repr(error)
        if heard != case.expected:
            account.wrong.append(f"{'stream' if stream else 'short'}: {heard[-300:]}")
        elif stream:
            account.streams += 1
        else:
            account.short += 1
        await asyncio.sleep(0.05)


async def _whole(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    response = await client.post("/v1/completions", json=body)
    if response.status_code != 200:
        return f"{response.status_code} {response.text}"
    text: str = response.json()["choices"][0]["text"]
    return text


async def _streamed(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    words: list[str] = []
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            return f"{response.status_code} {(await response.aread()).decode()}"
        async for line in response.aiter_lines():
            payload = line.removeprefix("data: ")
            if payload == "[DONE]":
                return "".join(words)
            if payload:
                event = json.loads(payload)
                words += [choice["text"] for choice in event.get("choices", ())]
                words += [payload] if "error" in event else []
    return "".join([*words, " without an end"])
