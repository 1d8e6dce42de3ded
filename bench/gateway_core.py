"""What does the gateway's own code cost a request? No socket, no tokenizer, no Ray, no engine.

    python -m bench.gateway_core [--quick] [--json FILE]

The whole HTTP application in this process over replicas that answer at once, one core; beside it a
bare FastAPI route under the same client, so that the client's own cost cancels out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
from fastapi import FastAPI

from tests.serving.fakes import FakeLink, Stage, answering, chat

CHAT = "/v1/chat/completions"
EVENTS = 65  # of the long stream; the short one has one


async def rate(call: Callable[[], Awaitable[httpx.Response]], *, count: int, width: int) -> float:
    """Seconds per request with `width` requests open at a time."""

    async def worker() -> None:
        for _ in range(count // width):
            (await call()).raise_for_status()

    await call()
    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(width)))
    return (time.perf_counter() - start) / count


async def measure(*, count: int) -> dict[str, float]:
    hello = FastAPI()

    @hello.post(CHAT)
    async def _hello() -> dict[str, str]:
        return {"hello": "world"}

    def client(app: FastAPI) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://bench")

    def gateway(events: int) -> FastAPI:
        stage = Stage(max_requests=256, link=FakeLink(answering(*["word"] * events)))
        stage.ready("a", "b", "c", "d")
        return stage.app()

    async def seconds(app: FastAPI, *, width: int = 1, stream: bool = False) -> float:
        async with client(app) as http:
            body = chat(stream=stream)
            return await rate(lambda: http.post(CHAT, json=body), count=count, width=width)

    bare_s, whole_s = await seconds(hello), await seconds(gateway(1))
    short_s = await seconds(gateway(1), stream=True)
    long_s = await seconds(gateway(EVENTS), stream=True)
    return {
        "requests_per_s": 1 / whole_s,
        "requests_per_s_64_open": 1 / await seconds(gateway(1), width=64),
        "bare_route_requests_per_s": 1 / bare_s,
        "added_us_per_request": 1e6 * (whole_s - bare_s),
        "times_a_bare_route": whole_s / bare_s,
        "us_per_stream_event": 1e6 * (long_s - short_s) / (EVENTS - 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    logging.disable(logging.INFO)  # httpx tells of every request
    figures = asyncio.run(measure(count=256 if arguments.quick else 2560))
    for name, value in figures.items():
        print(f"{name:28} {value:,.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
