"""What holds for hundreds of callers at once, through the real Serve application.

The engines are scripted: a token costs the time a test says, and what follows a prompt is known, so
that a stream can be compared token for token.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import httpx
import pytest

from tests.live.instance import until
from tests.live.scripted_engine import Pace, said, text
from tests.live.scripted_instance import MODEL, REPLICAS, SLOTS, ScriptedInstance

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

CALLERS = 200
NEVER_S = 3600.0
GONE_S = 1.0  # in which an engine forgets a request whose caller has left


@pytest.fixture(scope="module")
def service(three_replicas: ScriptedInstance) -> ScriptedInstance:
    asyncio.run(once_through(three_replicas))  # connections stay: they are part of being idle
    return three_replicas


async def once_through(service: ScriptedInstance) -> None:
    async with crowd_at(service) as crowd:
        await full_service(crowd)


@dataclass(eq=False)
class Caller:
    """One request, and what came back."""

    client: httpx.AsyncClient
    number: int
    pace: Pace
    length: int
    stream: bool = True
    status: int = 0
    words: list[str] = field(default_factory=list)
    ended: str = ""
    usage: dict[str, int] | None = None
    task: asyncio.Task[None] | None = None

    @property
    def prompt(self) -> str:
        return f"caller {self.number}"

    def begin(self) -> None:
        self.task = asyncio.create_task(self._ask())

    async def leave(self) -> None:
        assert self.task is not None
        assert not self.task.done(), f"too late to leave: {self.status} {self.ended}"
        self.task.cancel()
        await asyncio.wait({self.task})

    async def heard(self, words: int) -> None:
        while len(self.words) < words:
            await asyncio.sleep(0.01)

    def check(self) -> None:
        """The whole answer, nothing missing and nothing twice."""
        expected = said([ord(letter) for letter in self.prompt], self.length)
        assert (self.status, "".join(self.words)) == (200, text(expected))
        assert self.usage is not None
        assert self.usage["prompt_tokens"] == len(self.prompt)
        assert self.usage["completion_tokens"] == self.length
        assert self.ended == ("[DONE]" if self.stream else "")

    async def _ask(self) -> None:
        body = {
            "model": MODEL,
            "prompt": self.prompt,
            "max_tokens": self.length,
            "user": self.pace.user(),
        }
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        async with self.client.stream("POST", "/v1/completions", json=body) as response:
            self.status = response.status_code
            if not self.stream:
                await response.aread()
                self._hear(response.json())
                return
            async for line in response.aiter_lines():
                payload = line.removeprefix("data: ")
                if payload.startswith("{"):
                    self._hear(json.loads(payload))
                elif payload:
                    self.ended = payload

    def _hear(self, data: dict) -> None:
        assert "error" not in data, data
        self.words += [choice["text"] for choice in data["choices"]]
        self.usage = data.get("usage") or self.usage


@dataclass
class Crowd:
    """Callers of one service."""

    service: ScriptedInstance
    client: httpx.AsyncClient

    def begin(
        self, count: int, *, pace: Pace, length: int = 32, stream: bool = True
    ) -> list[Caller]:
        callers = [
            Caller(self.client, number, pace=pace, length=length, stream=stream)
            for number in range(count)
        ]
        for caller in callers:
            caller.begin()
        return callers

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        await asyncio.to_thread(until, condition, limit_s=60, what=what)

    async def running(self, count: int) -> None:
        await self.until(lambda: self.service.running() == count, f"{count} in the engines")


@asynccontextmanager
async def crowd_at(service: ScriptedInstance) -> AsyncIterator[Crowd]:
    async with httpx.AsyncClient(
        base_url=service.url, timeout=120.0, limits=httpx.Limits(max_connections=None)
    ) as client:
        yield Crowd(service, client)


async def leave_all(callers: list[Caller]) -> None:
    await asyncio.gather(*(caller.leave() for caller in callers))


async def leave_when(caller: Caller, moment: Awaitable[None]) -> None:
    await moment
    await caller.leave()


async def in_line_and_before_the_first_token(crowd: Crowd) -> None:
    holders = crowd.begin(REPLICAS * SLOTS, pace=Pace(prefill_s=NEVER_S))
    await crowd.running(len(holders))
    waiting = crowd.begin(CALLERS, pace=Pace())
    queued = partial(crowd.service.metric, "shardwise_queued_requests")
    await crowd.until(lambda: queued() == CALLERS, "all in line")
    await leave_all(waiting)
    await crowd.until(lambda: queued() == 0, "nobody in line")
    assert crowd.service.running() == len(holders)
    await leave_all(holders)


async def on_the_way(crowd: Crowd) -> None:
    callers = crowd.begin(CALLERS, pace=Pace(prefill_s=1.0, token_s=1.0))
    draw = random.Random(0)
    leaving = (leave_when(caller, asyncio.sleep(draw.uniform(0, 2))) for caller in callers)
    await asyncio.gather(*leaving)


async def between_tokens(crowd: Crowd) -> None:
    callers = crowd.begin(CALLERS, pace=Pace(token_s=0.2), length=1000)
    leaving = (leave_when(caller, caller.heard(1 + caller.number % 12)) for caller in callers)
    await asyncio.gather(*leaving)


async def of_an_answer_that_is_not_streamed(crowd: Crowd) -> None:
    callers = crowd.begin(CALLERS, pace=Pace(prefill_s=NEVER_S), stream=False)
    await crowd.running(CALLERS)
    await leave_all(callers)


async def while_a_stream_is_taken_up(crowd: Crowd) -> None:
    callers = crowd.begin(CALLERS, pace=Pace(prefill_s=3.0, token_s=0.2), length=1000)
    await asyncio.gather(*(caller.heard(3) for caller in callers))
    crowd.service.kill(crowd.service.replicas())
    await crowd.running(0)
    half = CALLERS // 2
    await leave_all(callers[:half])  # in line for a replica that is not there
    await crowd.running(half)  # before the first token of the rest
    await leave_all(callers[half:])


@pytest.mark.parametrize(
    "stage",
    [
        in_line_and_before_the_first_token,
        on_the_way,
        between_tokens,
        of_an_answer_that_is_not_streamed,
        while_a_stream_is_taken_up,
    ],
)
async def test_who_leaves_leaves_nothing_behind(
    service: ScriptedInstance, stage: Callable[[Crowd], Awaitable[None]]
) -> None:
    service.whole()
    async with crowd_at(service) as crowd:
        idle = service.metric("shardwise_tasks")
        await stage(crowd)
        gone_s = await asyncio.to_thread(
            until, lambda: service.running() == 0, limit_s=GONE_S, what="idle engines"
        )
        print(f"{stage.__name__}: engines idle after {gone_s:.2f} s")
        for name in ("shardwise_queued_requests", "shardwise_in_flight_tokens"):
            await crowd.until(lambda name=name: service.metric(name) == 0, f"{name} 0")
        await full_service(crowd)
        await crowd.until(
            lambda: service.metric("shardwise_tasks") <= idle, f"{idle:.0f} tasks as before"
        )


async def full_service(crowd: Crowd) -> None:
    """Every slot of every replica answers."""
    await asyncio.to_thread(crowd.service.whole)
    callers = crowd.begin(REPLICAS * SLOTS, pace=Pace(prefill_s=0.5), length=2)
    await asyncio.gather(*(caller.task for caller in callers if caller.task))
    for caller in callers:
        caller.check()


async def test_two_hundred_streams_outlive_a_replica(service: ScriptedInstance) -> None:
    service.whole()
    before = service.metric("shardwise_resumed_streams_total")
    async with crowd_at(service) as crowd:
        callers = crowd.begin(CALLERS, pace=Pace(token_s=0.2), length=40)
        await asyncio.gather(*(caller.heard(8) for caller in callers))
        victim, *_ = service.replicas()
        service.kill([victim])
        assert not any(caller.ended for caller in callers), "killed too late to tell"
        await asyncio.gather(*(caller.task for caller in callers if caller.task))
    for caller in callers:
        caller.check()
    assert service.metric("shardwise_resumed_streams_total") - before >= CALLERS / REPLICAS / 2
    assert service.metric("shardwise_broken_streams_total") == 0
