"""Turns of a conversation go where the conversation is cached, through the whole gateway."""

from __future__ import annotations

import asyncio
from typing import Any

from cluster.prefix_index import BLOCK_TOKENS
from serving.messages import EngineError
from serving.requests import Body, CompletionBody
from tests.serving.fakes import FakeLink, Gate, Stage, answering, failing


def tokens_of(body: Body) -> list[list[int]]:
    assert isinstance(body, CompletionBody)
    return [list(body.prompt)]  # type: ignore[arg-type]


def stage(gate: Gate) -> Stage:
    made = Stage(main_context=10_000, link=FakeLink(gate.script), max_requests=8, encode=tokens_of)
    made.ready("a", "b", "c")
    return made


def prompt(talk: int, *, turns: int) -> list[int]:
    return [100 * talk + turn for turn in range(turns) for _ in range(BLOCK_TOKENS)]


async def ask(on: Stage, talk: int, *, turns: int) -> str:
    """The replica that is asked."""
    tokens = prompt(talk, turns=turns)
    body: dict[str, Any] = {"model": "big", "prompt": tokens, "max_tokens": 4, "stream": True}
    async with on.client() as client:
        assert (await client.post("/v1/completions", json=body)).status_code == 200
    return next(
        replica for replica, request in reversed(on.link.calls) if request.body["prompt"] == tokens
    )


async def begun(on: Stage, gate: Gate) -> dict[int, str]:
    """Three conversations that began at the same time, and where."""
    first = [asyncio.create_task(ask(on, talk, turns=3)) for talk in range(3)]
    while on.link.running < 3:
        await asyncio.sleep(0)
    gate.open.set()
    return dict(enumerate(await asyncio.gather(*first)))


async def test_the_turns_of_a_conversation_meet_on_one_replica() -> None:
    gate = Gate()
    on = stage(gate)
    went = await begun(on, gate)
    assert sorted(went.values()) == ["a", "b", "c"]
    for turns in (4, 5):
        for talk, replica in went.items():  # all three are idle, and equal but for their caches
            assert await ask(on, talk, turns=turns) == replica
    on.assert_idle()


async def test_a_replica_that_fails_a_request_does_not_keep_it_for_its_cache() -> None:
    gate = Gate()
    on = stage(gate)
    went = await begun(on, gate)
    down = EngineError(status=503, message="down", retryable=True)
    on.link.by_replica[went[1]] = failing(down)
    on.link.by_replica |= {name: answering("up") for name in "abc" if name != went[1]}
    assert await ask(on, 1, turns=4) != went[1]
