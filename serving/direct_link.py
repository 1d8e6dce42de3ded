"""The link over a socket of the replica's own; see `serving.replica_link` for the contract.

One connection per replica carries all its calls (`serving.wire`). It is made at the first call and
made again when it was lost. A replica that does not answer a ping in time counts as lost, whatever
its requests are waiting for: a frozen process answers nothing, a busy engine does.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from serving import wire
from serving.messages import EngineReply, EngineRequest, ReplicaReport
from serving.replica_link import LinkError

PING_S = 2.0
SILENT_S = 15.0  # without any frame: lost


class DirectLink:
    """A `ReplicaLink` over sockets. `reach_s`: how long connecting may take."""

    def __init__(
        self,
        *,
        secret: str,
        reach_s: float,
        left: Callable[[str], None] = lambda _: None,
        ping_s: float = PING_S,
        silent_s: float = SILENT_S,
    ) -> None:
        self._secret, self._reach_s = secret, reach_s
        self._left = left
        self._ping_s, self._silent_s = ping_s, silent_s
        self._addresses: dict[str, str] = {}
        self._lines: dict[str, asyncio.Task[_Line]] = {}

    def observe(self, reports: Iterable[ReplicaReport]) -> None:
        """Where the replicas are. A connection stays until its replica or a silence ends it."""
        self._addresses = {report.replica_id: report.address for report in reports}

    def lose(self, replica_ids: Iterable[str]) -> None:
        """See `ReplicaLink.lose`."""
        for replica_id in replica_ids:
            self._addresses.pop(replica_id, None)
            task = self._lines.get(replica_id)
            if task is not None and task.done() and _usable(task):
                task.result().close("it is being ended")

    async def call(
        self, request: EngineRequest, *, replica_id: str
    ) -> AsyncIterator[list[EngineReply]]:
        """See `ReplicaLink.call`."""
        line = await self._line(replica_id)
        stream = line.begin(request)
        try:
            while True:
                replies = await stream.next()
                if replies is None:
                    return
                yield replies
        finally:
            line.leave(stream)

    async def close(self) -> None:
        """End all connections."""
        tasks, self._lines = list(self._lines.values()), {}
        for task in tasks:
            task.cancel()
        for line in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(line, _Line):
                line.close("the gateway has ended")
                await line.connection.ended()

    async def _line(self, replica_id: str) -> _Line:
        """The connection to a replica. Callers that come while it is made wait for the same."""
        task = self._lines.get(replica_id)
        if task is None or (task.done() and not _usable(task)):
            task = asyncio.get_running_loop().create_task(self._connect(replica_id))
            self._lines[replica_id] = task
        try:
            return await asyncio.shield(task)
        except (OSError, TimeoutError, LinkError) as error:
            said = str(error) or f"no answer within {self._reach_s:g} s"
            raise LinkError(f"replica {replica_id} cannot be reached: {said}") from error

    async def _connect(self, replica_id: str) -> _Line:
        address = self._addresses.get(replica_id)
        if address is None:
            raise LinkError("it has not said where it is")
        host, _, port = address.rpartition(":")
        line = _Line(
            replica_id, secret=self._secret, left=self._left, over=lambda: self._forget(replica_id)
        )
        async with asyncio.timeout(self._reach_s):
            await asyncio.get_running_loop().create_connection(
                lambda: line.connection, host, int(port)
            )
            try:
                await line.welcomed
            except BaseException:
                line.close("the gateway has given up")
                await line.connection.ended()
                raise
        line.watch(ping_s=self._ping_s, silent_s=self._silent_s)
        return line

    def _forget(self, replica_id: str) -> None:
        task = self._lines.get(replica_id)
        if task is not None and task.done() and not _usable(task):
            del self._lines[replica_id]


def _usable(task: asyncio.Task[_Line]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().connection.open


class _Line:
    """A connection to a replica and the calls on it."""

    def __init__(
        self,
        replica_id: str,
        *,
        secret: str,
        left: Callable[[str], None],
        over: Callable[[], None],
    ) -> None:
        self._replica_id, self._secret = replica_id, secret
        self._left, self._over = left, over
        self._nonce = secrets.token_bytes(wire.NONCE_BYTES)
        self._streams: dict[int, _Stream] = {}
        self._numbers = itertools.count(1)
        self._watching: asyncio.Task[None] | None = None
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.connection = wire.Connection(
            wire.FROM_REPLICA, take=lambda _, frame: self._take(frame), lost=self._lost
        )

    def begin(self, request: EngineRequest) -> _Stream:
        """Make a call."""
        stream = _Stream(next(self._numbers), self.connection)
        if self.connection.open:
            self._streams[stream.number] = stream
            self.connection.send(wire.call_of(stream.number, request))
        else:
            stream.fail(self._error("the connection was closed"))
        return stream

    def leave(self, stream: _Stream) -> None:
        """A call is over, or nobody wants the rest."""
        if self._streams.pop(stream.number, None) is not None:
            self.connection.send(wire.Cancel(stream.number))

    def watch(self, *, ping_s: float, silent_s: float) -> None:
        """Ping until the connection is lost."""
        self._watching = asyncio.get_running_loop().create_task(self._ping(ping_s, silent_s))

    def close(self, why: str) -> None:
        """End the connection."""
        self.connection.close(why)

    def _take(self, frame: Any) -> None:
        if isinstance(frame, wire.Replies):
            stream = self._streams.get(frame.stream)
            if stream is not None:  # else it was cancelled, and this has crossed that
                stream.add(wire.unpacked(frame.replies))
        elif isinstance(frame, wire.End):
            stream = self._streams.pop(frame.stream, None)
            if stream is not None:
                stream.end()
        elif isinstance(frame, wire.Hello):
            proof = wire.digest(self._secret, frame.nonce)
            self.connection.send(wire.Proof(proof, self._nonce))
        elif isinstance(frame, wire.Welcome):
            if not wire.proves(self._secret, self._nonce, frame.digest):
                raise wire.WireError("it does not know the secret")
            if not self.welcomed.done():
                self.welcomed.set_result(None)
        elif isinstance(frame, wire.Leaving):
            self._left(self._replica_id)

    def _lost(self, _: wire.Connection, why: str) -> None:
        if self._watching is not None:
            self._watching.cancel()
        error = self._error(why)
        if not self.welcomed.done():
            self.welcomed.set_exception(error)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)
        self._over()

    async def _ping(self, ping_s: float, silent_s: float) -> None:
        # Counted in pings and not by the clock: a gateway that stood still itself has missed none.
        heard, unanswered = self.connection.heard, 0
        while unanswered * ping_s < silent_s:
            self.connection.send(wire.Ping())
            await asyncio.sleep(ping_s)
            unanswered = unanswered + 1 if self.connection.heard == heard else 0
            heard = self.connection.heard
        self.connection.close(f"it said nothing for {silent_s:g} s")

    def _error(self, why: str) -> LinkError:
        return LinkError(f"replica {self._replica_id} was lost: {why}")


class _Stream:
    """Replies of one call, read by one caller."""

    def __init__(self, number: int, connection: wire.Connection) -> None:
        self.number = number
        self._connection = connection
        self._replies: deque[list[EngineReply]] = deque()
        self._read = 0
        self._over = False
        self._error: LinkError | None = None
        self._reader: asyncio.Future[None] | None = None

    def add(self, replies: list[EngineReply]) -> None:
        """Some have come."""
        self._replies.append(replies)
        self._wake()

    def end(self) -> None:
        """No more will come."""
        self._over = True
        self._wake()

    def fail(self, error: LinkError) -> None:
        """The connection was lost."""
        self._error = error
        self._wake()

    async def next(self) -> list[EngineReply] | None:
        """All that is there, None at the end. Raises LinkError after the last that came."""
        while not self._replies:
            if self._over:
                return None
            if self._error is not None:
                raise self._error
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        ready = [reply for batch in self._replies for reply in batch]
        self._replies.clear()
        self._read += len(ready)
        if self._read * 2 >= wire.WINDOW and not self._over:
            self._connection.send(wire.Credit(self.number, self._read))
            self._read = 0
        return ready

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
