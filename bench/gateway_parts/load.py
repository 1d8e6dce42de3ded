"""How fast does a server answer callers who ask again as soon as they are answered?

Closed loop: each of `width` connections stays open and has one request under way. The client has
to be cheap, it shares the cores with what it measures: sockets, httptools and uvloop, no parsing of
JSON; events and tokens are counted as bytes. An answer that lacks a token is a failure, not a
faster answer.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import httptools

from bench.gateway_parts.answers import TOKENS, WORD

_PATIENCE_S = 30.0  # for answers under way when the time is up
_LOOK_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where to ask, what for."""

    port: int
    model: str
    path: str = "/v1/chat/completions"

    def request(self, body: bytes) -> bytes:
        """The bytes of a request."""
        lines = [
            f"POST {self.path} HTTP/1.1",
            f"host: 127.0.0.1:{self.port}",
            "content-type: application/json",
            f"content-length: {len(body)}",
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Tally:
    """What came within the time that counts. `first_s`, `last_s`: from asking to event and end."""

    seconds: float
    first_s: list[float] = field(default_factory=list)
    last_s: list[float] = field(default_factory=list)
    events: int = 0
    tokens: int = 0
    body_bytes: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def requests_per_s(self) -> float:
        """Whole answers."""
        return len(self.last_s) / self.seconds

    @property
    def tokens_per_s(self) -> float:
        """Tokens of whole answers."""
        return self.tokens / self.seconds


class Count:
    """How often bytes occur in a text that comes in pieces."""

    def __init__(self, what: bytes) -> None:
        self._what = what
        self._tail = b""
        self.seen = 0

    def feed(self, data: bytes) -> None:
        """The next piece."""
        text = self._tail + data
        self.seen += text.count(self._what)
        self._tail = text[1 - len(self._what) :]  # too short to hold it whole, so none counts twice


class Caller(asyncio.Protocol):
    """One connection, and the answer that comes on it."""

    def __init__(self, request: bytes, press: Press) -> None:
        self._request = request
        self._press = press
        self._asked_s = 0.0
        self._answered = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by class
        self._parser = httptools.HttpResponseParser(self)
        self._press.joined(self)
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed."""
        if not self._answered:
            self._press.failed(f"the connection was lost ({exc or 'closed by the server'})")
        self._press.left(self)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._press.failed(f"not HTTP: {error}")
            self._answered = True
            self.close()

    def on_message_begin(self) -> None:
        """The parser's: one begins."""
        self._events, self._tokens = Count(b"data:"), Count(WORD.encode())
        self._length = 0
        self._first_s = 0.0
        self._start = b""

    def on_body(self, body: bytes) -> None:
        """The parser's: part of its body."""
        if not self._first_s:
            self._first_s = time.perf_counter()
            self._start = body
        self._length += len(body)
        self._events.feed(body)
        self._tokens.feed(body)

    def on_message_complete(self) -> None:
        """The parser's: it is whole."""
        self._answered = True
        status = self._parser.get_status_code()
        if status != 200:
            self._press.failed(f"status {status}: {self._start[:200].decode(errors='replace')}")
        elif self._tokens.seen != TOKENS:
            self._press.failed(f"{self._tokens.seen} tokens instead of {TOKENS}")
        else:
            self._press.answered(self)
        if not self._parser.should_keep_alive():
            self._transport.close()
        elif self._press.over:
            self.close()
        else:
            self._ask()

    def close(self) -> None:
        """Hang up."""
        self._transport.close()

    def record(self, tally: Tally) -> None:
        """Add the answer that has just come."""
        tally.last_s.append(time.perf_counter() - self._asked_s)
        tally.first_s.append(self._first_s - self._asked_s)
        tally.events += self._events.seen
        tally.tokens += self._tokens.seen
        tally.body_bytes += self._length

    def _ask(self) -> None:
        self._answered = False
        self._asked_s = time.perf_counter()
        self._transport.write(self._request)


class Press:
    """One run of the load. `warm_s`: of answers that do not count, before `seconds` that do."""

    def __init__(self, *, warm_s: float, seconds: float) -> None:
        self.tally = Tally(seconds)
        self._begin_s = time.perf_counter() + warm_s
        self._end_s = self._begin_s + seconds
        self._callers: set[Caller] = set()

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.perf_counter() >= self._end_s

    async def run(self, target: Target, body: bytes, *, width: int, spread_s: float) -> Tally:
        """Ask with `width` connections until the time is up; they begin over `spread_s`."""
        request = target.request(body)
        waits = [spread_s * index / width for index in range(width)]
        await asyncio.gather(*(self._call(target.port, request, wait_s=wait) for wait in waits))
        while not self.over:
            await asyncio.sleep(_LOOK_S)
            # Those that the server has closed between two requests.
            for _ in range(width - len(self._callers)):
                await self._call(target.port, request)
        patience = self._end_s + _PATIENCE_S
        while self._callers and time.perf_counter() < patience:
            await asyncio.sleep(_LOOK_S)
        for caller in list(self._callers):
            caller.close()
        return self.tally

    def joined(self, caller: Caller) -> None:
        """A connection is there."""
        self._callers.add(caller)

    def left(self, caller: Caller) -> None:
        """A connection is gone."""
        self._callers.discard(caller)

    def answered(self, caller: Caller) -> None:
        """A whole answer has come."""
        if self._begin_s <= time.perf_counter() < self._end_s:
            caller.record(self.tally)

    def failed(self, why: str) -> None:
        """An answer was none."""
        self.tally.failures[why] += 1

    async def _call(self, port: int, request: bytes, *, wait_s: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(wait_s)
        try:
            await loop.create_connection(lambda: Caller(request, self), "127.0.0.1", port)
        except OSError as error:
            self.failed(f"no connection: {error}")


async def press(
    target: Target,
    body: bytes,
    *,
    width: int,
    seconds: float,
    warm_s: float = 0.0,
    spread_s: float = 0.0,
) -> Tally:
    """Ask for `warm_s` and then for `seconds` that count, with `width` requests open at a time."""
    run = Press(warm_s=warm_s, seconds=seconds)
    return await run.run(target, body, width=width, spread_s=spread_s)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * round(share * 1000) // 1000))
    return ordered[rank - 1]
