"""How does a node read from another one's door? On a few connections that are kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from dataclasses import dataclass, field

import numpy as np

from serving import wire
from serving.weights.door import BUSY, LINE, NONCE_BYTES, Address, Read
from serving.weights.peers import BusyError, Chunk, NotHeldError

_REACH_S = 10.0
_SILENCE_S = 20.0


@dataclass
class DoorReader:
    """Reads from one door."""

    address: Address
    _idle: list[socket.socket] = field(default_factory=list)

    async def read(self, read: Read) -> Chunk:
        """A part of a file. Raises BusyError, NotHeldError, OSError if the other end is lost."""
        return await asyncio.to_thread(self._read, read)

    def close(self) -> None:
        """Give up the connections that are idle."""
        while self._idle:
            self._idle.pop().close()

    def _read(self, read: Read) -> Chunk:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connected()
        try:
            chunk = _exchange(connection, read)
        except (BusyError, NotHeldError):
            self._idle.append(connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return chunk

    def _connected(self) -> socket.socket:
        address = self.address
        connection = socket.create_connection((address.host, address.port), timeout=_REACH_S)
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            connection.settimeout(_SILENCE_S)
            nonce = bytearray(NONCE_BYTES)
            _fill(connection, memoryview(nonce))
            connection.sendall(wire.digest(address.secret, bytes(nonce)))
            undo.pop_all()
        return connection


def _exchange(connection: socket.socket, read: Read) -> Chunk:
    connection.sendall(read.line())
    answer = json.loads(_line(connection))
    if "refused" in answer:
        raise BusyError if answer["refused"] == BUSY else NotHeldError(read.name)
    chunk = np.empty(min(int(answer["length"]), read.length), dtype=np.uint8)
    _fill(connection, chunk.data)
    return chunk


def _line(connection: socket.socket) -> bytes:
    # Byte by byte: what follows the line is the file's.
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) > LINE:
            raise ConnectionError("the other end has closed the connection")
        line += byte
    return line


def _fill(connection: socket.socket, view: memoryview) -> None:
    while view:
        got = connection.recv_into(view)
        if not got:
            raise ConnectionError("the other end has closed the connection")
        view = view[got:]
