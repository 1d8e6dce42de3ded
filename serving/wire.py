"""How is what travels between gateway and engine replica written? Frames on one connection.

    frame   = length (u32, big endian) | MessagePack
    gateway                                     replica
       <- Hello     a nonce to prove oneself with
       -> Proof     HMAC-SHA256 of it, and a nonce of one's own
       <- Welcome   HMAC-SHA256 of that
       -> Call      a request, under a stream number of the gateway's
       <- Replies   of a stream: all that came since the last, as far as its credit goes
       -> Credit    for so many replies more: the reader keeps up
       -> Cancel    nobody wants the rest
       <- End       of a stream
       <- Leaving   no more calls, please; those begun are answered
       <> Ping, Pong

Many calls share a connection; credit keeps a reader that has fallen behind from holding up the
others. Any frame that is not one of these, or longer than `MOST_BYTES`, ends the connection.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

from serving.messages import EngineError, EngineReply, EngineRequest, Kind

MOST_BYTES = 256 * 1024 * 1024
WINDOW = 256  # replies of a stream that may be on their way, unread
NONCE_BYTES = 16
_LENGTH = 4


class Hello(msgspec.Struct, array_like=True, tag=0):  # noqa: D101 - the table above says it
    nonce: bytes


class Proof(msgspec.Struct, array_like=True, tag=1):  # noqa: D101
    digest: bytes
    nonce: bytes


class Welcome(msgspec.Struct, array_like=True, tag=2):  # noqa: D101
    digest: bytes


class Call(msgspec.Struct, array_like=True, tag=3):  # noqa: D101
    stream: int
    kind: Kind
    body: dict[str, Any]
    request_id: str
    tokens: float
    trace: dict[str, str] = {}  # last, and not needed: an end that does not know it leaves it out

    def request(self) -> EngineRequest:
        """What is asked of the engine."""
        return EngineRequest(
            kind=self.kind,
            body=self.body,
            request_id=self.request_id,
            tokens=self.tokens,
            trace=self.trace,
        )


class Refusal(msgspec.Struct, array_like=True):
    """An `EngineError`."""

    status: int
    message: str
    retryable: bool


class Replies(msgspec.Struct, array_like=True, tag=4):  # noqa: D101
    stream: int
    replies: list[str | dict[str, Any] | Refusal]


class Credit(msgspec.Struct, array_like=True, tag=5):  # noqa: D101
    stream: int
    replies: int


class Cancel(msgspec.Struct, array_like=True, tag=6):  # noqa: D101
    stream: int


class End(msgspec.Struct, array_like=True, tag=7):  # noqa: D101
    stream: int


class Leaving(msgspec.Struct, array_like=True, tag=8):  # noqa: D101
    pass


class Ping(msgspec.Struct, array_like=True, tag=9):  # noqa: D101
    pass


class Pong(msgspec.Struct, array_like=True, tag=10):  # noqa: D101
    pass


FromGateway = Proof | Call | Credit | Cancel | Ping | Pong
FromReplica = Hello | Welcome | Replies | End | Leaving | Ping | Pong
Frame = FromGateway | FromReplica

FROM_GATEWAY = msgspec.msgpack.Decoder(FromGateway)
FROM_REPLICA = msgspec.msgpack.Decoder(FromReplica)
_ENCODER = msgspec.msgpack.Encoder()


class WireError(Exception):
    """The other side does not keep to this."""


class FrameTooLargeError(Exception):
    """A frame of one's own that the other side would not take."""


def call_of(stream: int, request: EngineRequest) -> Call:
    """The frame of a request."""
    return Call(
        stream,
        request.kind,
        request.body,
        request.request_id,
        request.tokens,
        dict(request.trace),
    )


def packed(replies: Iterable[EngineReply]) -> list[str | dict[str, Any] | Refusal]:
    """Replies as they travel."""
    return [
        Refusal(reply.status, reply.message, reply.retryable)
        if isinstance(reply, EngineError)
        else reply
        for reply in replies
    ]


def unpacked(replies: Iterable[str | dict[str, Any] | Refusal]) -> list[EngineReply]:
    """Replies as they were."""
    return [
        EngineError(status=reply.status, message=reply.message, retryable=reply.retryable)
        if isinstance(reply, Refusal)
        else reply
        for reply in replies
    ]


def digest(secret: str, nonce: bytes) -> bytes:
    """Proof of knowing the secret."""
    return hmac.digest(secret.encode(), nonce, hashlib.sha256)


def proves(secret: str, nonce: bytes, shown: bytes) -> bool:
    """Whether `shown` is the digest."""
    return hmac.compare_digest(digest(secret, nonce), shown)


def encoded(frame: Frame) -> bytes:
    """A frame's bytes."""
    buffer = bytearray(_LENGTH)
    _ENCODER.encode_into(frame, buffer, _LENGTH)
    buffer[:_LENGTH] = (len(buffer) - _LENGTH).to_bytes(_LENGTH, "big")
    return bytes(buffer)


class Connection(asyncio.Protocol):
    """One end of a connection. `take`: hears every frame; `lost`: once, with the reason.

    `heard` counts the frames that came. `eager` is False while the other side reads too slowly.
    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[Any],
        *,
        made: Callable[[Connection], None] = lambda _: None,
        take: Callable[[Connection, Any], None],
        lost: Callable[[Connection, str], None],
        resumed: Callable[[Connection], None] = lambda _: None,
    ) -> None:
        self._decoder = decoder
        self._made, self._take, self._lost, self._resumed = made, take, lost, resumed
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._why = "the connection was closed"
        self._ended = asyncio.Event()
        self.heard = 0
        self.eager = True

    @property
    def open(self) -> bool:
        """Whether frames can be sent."""
        return self._transport is not None

    def send(self, frame: Frame) -> None:
        """Send a frame, if there still is a connection. Raises FrameTooLargeError."""
        if self._transport is None:
            return
        data = encoded(frame)
        if len(data) - _LENGTH > MOST_BYTES:
            raise FrameTooLargeError(
                f"{len(data):,} bytes at once, and {MOST_BYTES:,} are the most"
            )
        self._transport.write(data)

    def close(self, why: str) -> None:
        """End the connection; `lost` hears why."""
        if self._transport is not None:
            self._why = why
            self._transport.abort()

    async def ended(self) -> None:
        """Until `lost` was told."""
        await self._ended.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio says."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods alone
        self._made(self)

    def connection_lost(self, error: Exception | None) -> None:
        """As asyncio says."""
        self._transport = None
        self._lost(self, self._why if error is None else str(error))
        self._ended.set()

    def pause_writing(self) -> None:
        """As asyncio says."""
        self.eager = False

    def resume_writing(self) -> None:
        """As asyncio says."""
        self.eager = True
        self._resumed(self)

    def data_received(self, data: bytes) -> None:
        """As asyncio says."""
        buffer = self._buffer
        buffer += data
        start = 0
        while self.open and len(buffer) - start >= _LENGTH:
            length = int.from_bytes(buffer[start : start + _LENGTH], "big")
            if length > MOST_BYTES:
                self.close(f"a frame of {length:,} bytes; {MOST_BYTES:,} is the most")
                return
            end = start + _LENGTH + length
            if len(buffer) < end:
                break
            self._frame(bytes(buffer[start + _LENGTH : end]))
            start = end
        del buffer[:start]

    def _frame(self, body: bytes) -> None:
        self.heard += 1
        try:
            frame = self._decoder.decode(body)
            self._take(self, frame)
        except (msgspec.DecodeError, WireError) as error:
            self.close(f"not a frame of this protocol: {error}")
