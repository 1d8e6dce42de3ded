"""What no HTTP client sends, over a real socket: none is a 5xx, none is logged, none stays."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from serving.entry import HttpEntry
from serving.settings.config import LimitsSection
from tests.live.instance import free_port
from tests.serving.fakes import Stage, chat

BODY = json.dumps(chat()).encode()
PATHS = (b"/v1/chat/completions", b"/v1/completions", b"/tokenize", b"/detokenize")


def head(path: bytes, *lines: bytes, method: bytes = b"POST") -> bytes:
    return b"\r\n".join((method + b" " + path + b" HTTP/1.1", b"Host: x", *lines, b"", b""))


def sized(path: bytes, size: int, body: bytes) -> bytes:
    return head(path, b"Content-Length: %d" % size) + body


def chunked(path: bytes, *chunks: bytes) -> bytes:
    return head(path, b"Transfer-Encoding: chunked") + b"".join(chunks)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


HALF = [
    message
    for path in PATHS
    for message in (
        sized(path, len(BODY), b""),
        sized(path, len(BODY), BODY[:20]),
        sized(path, 10**12, BODY),
        chunked(path, chunk(BODY[:20])),
        chunked(path, b"ff\r\nabc"),
        head(path)[:-2],
        b"POST " + path,
    )
]
BROKEN = [
    message
    for path in PATHS
    for message in (
        chunked(path, b"zz\r\n", BODY),
        chunked(path, chunk(b"{"), b"-5\r\n"),
        sized(path, 5, BODY),
        head(path, b"Content-Length: abc"),
        head(path, b"Content-Length: -1"),
        head(path, b"Content-Length: 5", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
        head(path, b"X-Request-Id: \x00\x01"),
        head(path, b"Authorization: Bearer \xff\xfe") + b"",
        head(path, b"Content-Length: 0"),
        head(path, b"X: " + b"y" * 200_000),
        head(path + b"?" + b"%ff" * 50, b"Content-Length: 0"),
        head(path + b"/%00/..", b"Content-Length: 0"),
        head(path, b"Content-Length: 0", method=b"BREW"),
        head(path, b"Upgrade: websocket", b"Connection: Upgrade", method=b"GET"),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    )
]


BODY_S = 0.3


@dataclass
class Port:
    stage: Stage
    number: int

    async def say(self, message: bytes, *, then_leave: bool) -> bytes:
        """What comes back, for a while; or nothing, for who leaves in the middle."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.number)
        try:
            writer.write(message)
            await writer.drain()
            if then_leave:
                await asyncio.sleep(0.01)
                return b""
            async with asyncio.timeout(0.5):
                return await reader.read(65536)
        except (TimeoutError, ConnectionError):
            return b""
        finally:
            writer.close()


@pytest.fixture
async def port(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Port]:
    caplog.set_level(logging.ERROR)
    stage = Stage(limits=LimitsSection(body_s=BODY_S))
    stage.ready("a")
    entry = await HttpEntry.open(
        stage.app(application="x"),
        host="127.0.0.1",
        port=free_port(),
        node="127.0.0.1",
        application="x",
    )
    yield Port(stage, int(entry.own_address.rpartition(":")[2]))
    await entry.close()
    stage.assert_idle()
    assert caplog.get_records("call") == []


async def test_who_leaves_in_the_middle_of_a_request_leaves_nothing(port: Port) -> None:
    for message in HALF:
        await port.say(message, then_leave=True)
    answer = await port.say(sized(PATHS[0], len(BODY), BODY), then_leave=False)
    assert b" 200 " in answer.split(b"\r\n")[0]


@pytest.mark.parametrize("at_once", [1, len(BROKEN)])
async def test_what_is_not_http_is_no_fault_of_the_gateway(port: Port, at_once: int) -> None:
    for first in range(0, len(BROKEN), at_once):
        messages = BROKEN[first : first + at_once]
        answers = await asyncio.gather(*(port.say(one, then_leave=False) for one in messages))
        for message, answer in zip(messages, answers, strict=True):
            assert not answer.startswith(b"HTTP/1.1 5"), (message[:200], answer)


async def test_a_body_in_many_chunks_is_one_body(port: Port) -> None:
    pieces = [chunk(BODY[place : place + 7]) for place in range(0, len(BODY), 7)]
    answer = await port.say(chunked(PATHS[0], *pieces, b"0\r\n\r\n"), then_leave=False)
    assert b" 200 " in answer.split(b"\r\n")[0]


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_that_does_not_come_is_not_waited_for_for_ever(
    port: Port, path: bytes
) -> None:
    answer = await port.say(sized(path, len(BODY), BODY[:5]), then_leave=False)
    assert b" 408 " in answer.split(b"\r\n")[0]
    assert b"limits.body_s" in answer
