"""Where do other nodes read a store's files? On a connection, from the page cache by sendfile.

    store                                     reader
      <- nonce                                   32 bytes
      -> HMAC-SHA256 of it                       32 bytes; what it is keyed with, Ray tells
      -> {"key", "version", "name", "offset", "length", "reader"}      a line
      <- {"length"} and the bytes, or {"refused": "busy" or "not held"}

Requests follow one another on a connection until the reader closes it.
"""

from __future__ import annotations

import json
import secrets
import socketserver
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from serving import wire
from serving.weights.peers import BusyError, NotHeldError

NONCE_BYTES = 32
BUSY, NOT_HELD = "busy", "not held"
LINE = 16 * 1024  # longest
_PROOF_S = 10.0
_IDLE_S = 120.0


@dataclass(frozen=True)
class Read:
    """A part of a file, asked for."""

    key: str
    version: str
    name: str
    offset: int
    length: int
    reader: str

    def line(self) -> bytes:
        """As it is sent."""
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(frozen=True)
class Address:
    """Where a store's door is, and what opens it."""

    host: str
    port: int
    secret: str


class Door(socketserver.ThreadingTCPServer):
    """Listens on `host` from when it is made. `find`: a file's path, BusyError, NotHeldError."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str, find: Callable[[Read], Path]) -> None:
        super().__init__((host, 0), _Handler)
        self.find = find
        self.secret = secrets.token_urlsafe(32)
        threading.Thread(target=self._serve, name="weights-door", daemon=True).start()

    @property
    def at(self) -> Address:
        """To be told to readers."""
        host, port = self.socket.getsockname()[:2]
        return Address(host, port, self.secret)

    def _serve(self) -> None:
        self.serve_forever(poll_interval=0.05)

    def handle_error(self, request: object, client_address: object) -> None:
        """A reader that has gone, or is not one of ours, is no event."""
        del request, client_address


class _Handler(socketserver.StreamRequestHandler):
    server: Door
    timeout = _PROOF_S

    def handle(self) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        self.connection.sendall(nonce)
        proof = self.rfile.read(NONCE_BYTES)
        if not wire.proves(self.server.secret, nonce, proof):
            return
        self.connection.settimeout(_IDLE_S)
        while line := self.rfile.readline(LINE):
            self._answer(Read(**json.loads(line)))

    def _answer(self, read: Read) -> None:
        try:
            with self.server.find(read).open("rb") as file:
                size = file.seek(0, 2)
                length = max(0, min(read.length, size - read.offset))
                self._say({"length": length})
                if length:
                    self.connection.sendfile(file, read.offset, length)
        except BusyError:
            self._say({"refused": BUSY})
        except NotHeldError:
            self._say({"refused": NOT_HELD})

    def _say(self, what: dict[str, object]) -> None:
        self.connection.sendall(json.dumps(what).encode() + b"\n")
