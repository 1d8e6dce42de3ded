"""Where do gateways reach this replica? A socket on which each has one connection for all calls.

A call is a task that asks the engine; what the engine says goes in the turn of the event loop in
which it is said, in one frame a stream, unless the reader has no credit left or the connection is
full: then it waits.

Invariants: a call ends when the engine does, when it is cancelled, or when its connection is lost,
and the engine forgets it in all three cases; nothing is answered to who cannot prove the secret.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from serving import wire
from serving.messages import EngineError, EngineReply, EngineRequest

PROOF_S = 10.0  # for a gateway to prove itself

Generate = Callable[[EngineRequest], AsyncIterator[EngineReply]]

logger = logging.getLogger("ray.serve")


class Listener:
    """Answers calls with `generate`. Use `await Listener.start(…)`."""

    def __init__(self, generate: Generate, *, secret: str) -> None:
        self._generate = generate
        self._secret = secret
        self._gateways: dict[wire.Connection, _Gateway] = {}
        self._server: asyncio.Server | None = None
        self._leaving = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._calls = 0

    @classmethod
    async def start(cls, generate: Generate, *, host: str, secret: str) -> Listener:
        """Listen on a free port of `host`."""
        listener = cls(generate, secret=secret)
        loop = asyncio.get_running_loop()
        listener._server = await loop.create_server(listener._connection, host, 0)
        return listener

    @property
    def address(self) -> str:
        """Where: host and port."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    @property
    def calls(self) -> int:
        """Calls being answered."""
        return self._calls

    async def leave(self) -> None:
        """Tell the gateways to send nothing more, and finish what was begun."""
        self._leaving = True
        for connection in self._gateways:
            connection.send(wire.Leaving())
        await self._idle.wait()

    async def close(self) -> None:
        """End everything."""
        if self._server is not None:
            self._server.close()
        connections = list(self._gateways)
        for connection in connections:
            connection.close("the replica has ended")
            await connection.ended()
        await self._idle.wait()

    def _connection(self) -> wire.Connection:
        return wire.Connection(
            wire.FROM_GATEWAY,
            made=self._made,
            take=self._take,
            lost=self._lost,
            resumed=lambda connection: self._gateways[connection].flush(),
        )

    def _made(self, connection: wire.Connection) -> None:
        gateway = _Gateway(connection, nonce=secrets.token_bytes(wire.NONCE_BYTES))
        self._gateways[connection] = gateway
        connection.send(wire.Hello(gateway.nonce))
        gateway.proof_due = asyncio.get_running_loop().call_later(
            PROOF_S, connection.close, "no proof of the secret came"
        )

    def _lost(self, connection: wire.Connection, why: str) -> None:
        gateway = self._gateways.pop(connection)
        if gateway.proven:
            logger.info("a gateway is gone: %s", why)
        if gateway.proof_due is not None:
            gateway.proof_due.cancel()
        for answer in list(gateway.answers.values()):
            answer.task.cancel()

    def _take(self, connection: wire.Connection, frame: Any) -> None:
        gateway = self._gateways[connection]
        if isinstance(frame, wire.Proof):
            self._prove(gateway, frame)
        elif not gateway.proven:
            raise wire.WireError("it has not proven that it knows the secret")
        elif isinstance(frame, wire.Call):
            self._call(gateway, frame)
        elif isinstance(frame, wire.Credit):
            gateway.credit(frame.stream, frame.replies)
        elif isinstance(frame, wire.Cancel):
            gateway.cancel(frame.stream)
        elif isinstance(frame, wire.Ping):
            connection.send(wire.Pong())

    def _prove(self, gateway: _Gateway, proof: wire.Proof) -> None:
        if gateway.proven or not wire.proves(self._secret, gateway.nonce, proof.digest):
            raise wire.WireError("the proof is wrong")
        gateway.proven = True
        if gateway.proof_due is not None:
            gateway.proof_due.cancel()
        gateway.connection.send(wire.Welcome(wire.digest(self._secret, proof.nonce)))
        if self._leaving:
            gateway.connection.send(wire.Leaving())

    def _call(self, gateway: _Gateway, call: wire.Call) -> None:
        if call.stream in gateway.answers:
            raise wire.WireError(f"stream {call.stream} is not over")
        if self._leaving:  # its call and our word have crossed
            gone = EngineError(status=503, message="the replica is leaving", retryable=True)
            gateway.connection.send(wire.Replies(call.stream, wire.packed([gone])))
            gateway.connection.send(wire.End(call.stream))
            return
        self._calls += 1
        self._idle.clear()
        task = asyncio.get_running_loop().create_task(self._answer(gateway, call))
        gateway.answers[call.stream] = _Answer(task)
        # Not at the end of the task's own code: a task cancelled early never runs any.
        task.add_done_callback(lambda done: self._ended(gateway, call.stream, done))

    async def _answer(self, gateway: _Gateway, call: wire.Call) -> None:
        try:
            replies = self._generate(call.request())
            async with aclosing(replies) as engine:  # type: ignore[type-var]
                async for reply in engine:
                    gateway.add(call.stream, reply)
        except Exception as error:
            logger.exception("request %s failed in the engine", call.request_id)
            said = f"{type(error).__name__}: {error}"
            gateway.add(call.stream, EngineError(status=500, message=said, retryable=True))

    def _ended(self, gateway: _Gateway, stream: int, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            gateway.forget(stream)
        else:
            gateway.end(stream)
        self._calls -= 1
        if not self._calls:
            self._idle.set()


@dataclass
class _Answer:
    """A call: its task, replies that wait, how many may be sent, whether the engine is done."""

    task: asyncio.Task[None]
    credit: int = wire.WINDOW
    waiting: list[EngineReply] = field(default_factory=list)
    over: bool = False
    due: bool = False  # to be sent at the end of this turn


@dataclass(eq=False)
class _Gateway:
    """A connection, and the calls that came over it."""

    connection: wire.Connection
    nonce: bytes
    proven: bool = False
    proof_due: asyncio.TimerHandle | None = None
    answers: dict[int, _Answer] = field(default_factory=dict)

    def add(self, stream: int, reply: EngineReply) -> None:
        """The engine has said something more."""
        answer = self.answers[stream]
        answer.waiting.append(reply)
        if not answer.due:
            answer.due = True
            asyncio.get_running_loop().call_soon(self._turn_ends, stream, answer)

    def end(self, stream: int) -> None:
        """The engine has said everything."""
        answer = self.answers[stream]
        answer.over = True
        self._send(stream, answer)

    def _turn_ends(self, stream: int, answer: _Answer) -> None:
        answer.due = False
        if self.answers.get(stream) is answer:
            self._send(stream, answer)

    def forget(self, stream: int) -> None:
        """Nobody listens."""
        self.answers.pop(stream, None)

    def credit(self, stream: int, replies: int) -> None:
        """The reader has read; what it says of a stream that is over is late, not wrong."""
        if replies < 0:
            raise wire.WireError(f"a credit of {replies} replies")
        answer = self.answers.get(stream)
        if answer is not None:
            answer.credit += replies
            self._send(stream, answer)

    def cancel(self, stream: int) -> None:
        """The reader has left."""
        answer = self.answers.get(stream)
        if answer is None:
            return
        if answer.over:  # the engine is done, only the sending was not
            self.forget(stream)
        else:
            answer.task.cancel()

    def flush(self) -> None:
        """There is room on the connection again."""
        for stream, answer in list(self.answers.items()):
            self._send(stream, answer)

    def _send(self, stream: int, answer: _Answer) -> None:
        while answer.waiting and answer.credit > 0 and self.connection.eager:
            now = answer.waiting[: answer.credit]
            del answer.waiting[: len(now)]
            answer.credit -= len(now)
            try:
                self.connection.send(wire.Replies(stream, wire.packed(now)))
            except wire.FrameTooLargeError as error:
                said = f"The answer is too large: {error}. Ask for less in one request."
                refusal = EngineError(status=400, message=said, retryable=False)
                self.connection.send(wire.Replies(stream, wire.packed([refusal])))
        if answer.over and not answer.waiting:
            self.connection.send(wire.End(stream))
            self.forget(stream)
