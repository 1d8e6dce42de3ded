"""Our engine replica with the fake engine in it: the deployment, its listener and its reports real.

It says what `bench.gateway_parts.fake_engine` says, event for event, over our own wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

from bench.gateway_parts.answers import CHAT, COMPLETIONS, TOKENS, pace_s
from serving.engine.replica import EngineReplica
from serving.messages import DONE, EngineReply, EngineRequest, EngineSpec


class FakeEngine:
    """What `EngineReplica` asks of an engine."""

    @classmethod
    async def start(cls, spec: EngineSpec) -> Any:
        """In no time."""
        del spec
        return cls()

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineReply]:
        """Every token when it is due, or the whole answer at the end."""
        asked = request.body["messages"][-1]["content"] if request.kind == "chat" else ""
        token_s = pace_s(str(asked).encode())
        if not request.stream:
            if token_s:
                await asyncio.sleep(TOKENS * token_s)
            yield _whole(request.kind, request.body["model"])
            return
        ids = bool(request.body.get("return_token_ids"))
        events = _events(request.kind, request.body["model"], ids)
        ahead = len(events) - TOKENS
        begun_s = asyncio.get_running_loop().time()
        for index, event in enumerate(events):
            if token_s:
                await _until(begun_s + token_s * max(1, index - ahead + 1))
            yield event
        yield DONE

    async def check(self) -> None:
        """It never dies."""

    def stats(self) -> dict[str, float]:
        """It is never busy."""
        return {"running": 0.0, "waiting": 0.0, "kv_usage": 0.0}


class FakeReplica(EngineReplica):
    """The deployment class."""

    engine = FakeEngine  # type: ignore[assignment]


@cache
def _events(kind: str, model: str, ids: bool) -> list[str]:  # noqa: FBT001 - a key of the cache
    return (CHAT if kind == "chat" else COMPLETIONS).events(model, ids=ids)


@cache
def _whole(kind: str, model: str) -> dict[str, Any]:
    return (CHAT if kind == "chat" else COMPLETIONS).whole(model)


async def _until(due_s: float) -> None:
    await asyncio.sleep(max(0.0, due_s - asyncio.get_running_loop().time()))
