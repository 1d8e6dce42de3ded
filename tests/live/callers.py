"""Callers of a scripted service who compare each answer token for token."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.live.instance import until
from tests.live.scripted_engine import Pace, said, text
from tests.live.scripted_instance import MODEL

STREAMS, SHORT = 6, 4
TOKENS = 60


class Callers:
    """Streams and short requests without a break; each answer is compared token for token."""

    def __init__(self, url: str) -> None:
        self._url, self._stop = url, False
        self.answered = 0
        self.lost: list[str] = []

    def stop(self) -> None:
        self._stop = True

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=120.0) as client:
            kinds = [True] * STREAMS + [False] * SHORT
            await asyncio.gather(
                *(self._ask_on(client, n, stream=stream) for n, stream in enumerate(kinds))
            )

    async def _ask_on(self, client: httpx.AsyncClient, number: int, *, stream: bool) -> None:
        pace = Pace(token_s=0.1 if stream else 0.0)
        body = {
            "model": MODEL,
            "prompt": f"caller {number}",
            "max_tokens": TOKENS if stream else 2,
            "user": pace.user(),
            "stream": stream,
        }
        expected = text(said([ord(letter) for letter in body["prompt"]], body["max_tokens"]))
        while not self._stop:
            got = await self._answer(client, body)
            if got == expected:
                self.answered += 1
            else:
                self.lost.append(got)
            await asyncio.sleep(0.05)

    async def _answer(self, client: httpx.AsyncClient, body: dict[str, Any]) -> str:
        try:
            response = await client.post("/v1/completions", json=body)
        except httpx.HTTPError as error:
            return repr(error)
        if response.status_code != 200:
            return response.text
        if not body["stream"]:
            return str(response.json()["choices"][0]["text"])
        events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
        if events[-1] != "[DONE]":
            return response.text
        return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


@contextmanager
def under_load(url: str) -> Iterator[Callers]:
    """Requests without a break, none of which is lost."""
    callers = Callers(url)
    thread = threading.Thread(target=callers.run)
    thread.start()
    try:
        until(lambda: callers.answered > SHORT, limit_s=180, what="callers are answered")
        yield callers
        before = callers.answered
        until(lambda: callers.answered > before + STREAMS + SHORT, limit_s=180, what="still are")
    finally:
        callers.stop()
        thread.join(timeout=60)
    print(f"{callers.answered} answers, {len(callers.lost)} lost")
    assert callers.lost == []
