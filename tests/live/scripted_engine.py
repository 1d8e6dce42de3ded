"""An engine that speaks as vLLM does on /v1/completions, at the pace the caller asks for.

Its next token follows from all tokens before it, so that a stream taken up with one token missing
or doubled says something else from there on. The pace is in the body's `user`: see `Pace`.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import psutil

from serving.engine.engine import Engine
from serving.instance import INSTANCE_VARIABLE
from serving.messages import DONE, EngineError, EngineReply, EngineRequest, EngineSpec

RUNNING = "running"  # folder of the instance: a file per engine with the requests it is at
FROZEN = "frozen"  # folder: a file named after a process, and its engine makes no step
BROKEN = "broken"  # file: no engine starts, for the reason in it; empty: a start never ends


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds to the first token, and to each other one."""

    prefill_s: float = 0.0
    token_s: float = 0.0

    def user(self) -> str:
        """As the body's `user`."""
        return json.dumps(asdict(self))


def said(prompt: list[int], count: int) -> list[int]:
    """The tokens that follow a prompt."""
    state = _read(prompt)
    made: list[int] = []
    for _ in range(count):
        made.append(_next(state))
        state = _read(made[-1:], state)
    return made


def text(tokens: list[int]) -> str:
    """What tokens add to an answer's text."""
    return "".join(f" {token}" for token in tokens)


def _read(tokens: list[int], state: int = 0) -> int:
    return crc32(struct.pack(f"<{len(tokens)}I", *tokens), state)


def _next(state: int) -> int:
    return 1000 + state % 1000  # whole words of the served model's tokenizer


class ScriptedEngine(Engine):
    """In the place of `Engine`."""

    def __init__(self) -> None:
        home = Path(os.environ[INSTANCE_VARIABLE])
        (home / RUNNING).mkdir(exist_ok=True)
        self._count = (home / RUNNING / str(os.getpid())).open("w+b", buffering=0)
        self._frozen = home / FROZEN / str(os.getpid())
        self._running = 0
        self._mute = False
        self._steps = 0
        self._note(0)

    @classmethod
    async def start(cls, spec: EngineSpec) -> ScriptedEngine:
        broken = Path(os.environ[INSTANCE_VARIABLE]) / BROKEN
        if broken.exists():
            why = broken.read_text()
            if not why:
                await asyncio.Event().wait()
            raise RuntimeError(why)
        if spec.engine_args.get("scripted_fault") == "start":
            raise RuntimeError("this engine is told not to start")
        await asyncio.sleep(spec.engine_args.get("scripted_start_s", 0.0))
        engine = cls()
        engine._mute = spec.engine_args.get("scripted_fault") == "mute"
        return engine

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineReply]:
        if self._mute:
            yield EngineError(status=500, message="it is told to say nothing", retryable=True)
            return
        self._note(+1)
        try:
            async for reply in _answer(request):
                while self._frozen.exists():
                    await asyncio.sleep(0.1)
                self._steps += 1
                yield reply
        finally:
            self._note(-1)

    async def check(self) -> None:
        pass

    def stats(self) -> dict[str, float]:
        steps = float(self._steps)
        return {"running": float(self._running), "waiting": 0.0, "kv_usage": 0.0, "steps": steps}

    def _note(self, change: int) -> None:
        self._running += change
        os.pwrite(self._count.fileno(), struct.pack("<I", self._running), 0)


def running(directory: Path) -> int:
    """Requests that the engines of an instance are at, those that live."""
    counts = (directory / RUNNING).iterdir()
    return sum(
        struct.unpack("<I", count.read_bytes())[0]
        for count in counts
        if psutil.pid_exists(int(count.name))
    )


async def _answer(request: EngineRequest) -> AsyncIterator[EngineReply]:
    body = request.body
    pace = Pace(**json.loads(body.get("user") or "{}"))
    prompt = [ord(letter) for letter in body["prompt"]] if _is_text(body) else body["prompt"]
    tokens = said(prompt, body["max_tokens"])
    usage = {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(tokens),
        "total_tokens": len(prompt) + len(tokens),
    }
    same = {
        "id": f"cmpl-{request.request_id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": body["model"],
    }
    if not request.stream:
        await asyncio.sleep(pace.prefill_s + pace.token_s * len(tokens))
        choice = {"index": 0, "text": text(tokens), "logprobs": None, "finish_reason": "length"}
        yield {**same, "choices": [choice], "usage": usage}
        return
    ids = body.get("return_token_ids")
    await asyncio.sleep(pace.prefill_s)
    for event in _events(prompt, tokens, ids=bool(ids)):
        yield _dump({**same, "choices": [event]})
        await asyncio.sleep(pace.token_s)
    if (body.get("stream_options") or {}).get("include_usage"):
        yield _dump({**same, "choices": [], "usage": usage})
    yield DONE


def _events(prompt: list[int], tokens: list[int], *, ids: bool) -> Iterator[dict[str, Any]]:
    for place, token in enumerate(tokens):
        choice: dict[str, Any] = {
            "index": 0,
            "text": text([token]),
            "logprobs": None,
            "finish_reason": "length" if place == len(tokens) - 1 else None,
        }
        if ids:
            choice |= {"prompt_token_ids": prompt} if place == 0 else {}
            choice |= {"token_ids": [token]}
        yield choice


def _is_text(body: dict[str, Any]) -> bool:
    return isinstance(body["prompt"], str)


def _dump(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"))
