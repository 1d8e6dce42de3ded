"""Where do callers reach a gateway? An HTTP server in its own process, on the operator's port.

Not Ray Serve's proxy: between that and a replica each event of a stream is a message of its own
(`bench/entry.py`). Serve places the gateways, restarts and drains them; the gateways of one node
share the port (SO_REUSEPORT, the kernel spreads connections), and each has a second one for itself,
by which it can be told from the others (metrics, status).

The kernel would let any two services of one user share a port. A gateway therefore joins a port
that is taken only if who listens there is of the same application: `/health` says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import urllib.request
from collections.abc import Iterator
from typing import Any

import uvicorn

# Longer than load balancers keep idle connections: who closes first must be the one that asks.
KEEP_ALIVE_S = 120
BACKLOG = 2048
_PROBE_S = 5.0
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # and where this machine finds it


class PortTakenError(RuntimeError):
    """The port belongs to somebody else."""


class HttpEntry:
    """A running HTTP server. Use `await HttpEntry.open(...)` in the loop that is to serve."""

    def __init__(self, server: uvicorn.Server, serving: asyncio.Task[None], own: str) -> None:
        self._server = server
        self._serving = serving
        self.own_address = own

    @classmethod
    async def open(
        cls, app: Any, *, host: str, port: int, node: str, application: str
    ) -> HttpEntry:
        """Serve `app` on the shared port and on one of its own.

        `node`: this node's address, for where `host` is all interfaces. `application`: what
        `/health` of a gateway of the same application says it is. Raises PortTakenError.
        """
        await asyncio.to_thread(_must_be_ours, host, port, application)
        shared = _listen(host, port)
        own = _listen(host, 0)
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[shared, own]))
        reached = node if host in _EVERYWHERE else host
        return cls(server, serving, f"{_in_url(reached)}:{own.getsockname()[1]}")

    async def close(self) -> None:
        """Take no more connections, and return when the answers that were begun are finished."""
        self._server.should_exit = True
        await self._serving


class _Server(uvicorn.Server):
    """One that leaves the process's signals alone: they are Ray's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    return socket.create_server(
        (host, port), family=_family(host), backlog=BACKLOG, reuse_port=port != 0
    )


def _must_be_ours(host: str, port: int, application: str) -> None:
    """Raise PortTakenError if another than this application listens on the port."""
    try:
        socket.create_server((host, port), family=_family(host)).close()
    except OSError as error:
        if _who_listens(host, port) != application:
            raise PortTakenError(
                f"{host}:{port} cannot be used for HTTP ({error.strerror or error}). Fix: stop "
                "what listens there, or set another 'http.port' in the serving configuration."
            ) from error


def _who_listens(host: str, port: int) -> str | None:
    url = f"http://{_in_url(_EVERYWHERE.get(host, host))}:{port}/health"
    without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with without_proxy.open(url, timeout=_PROBE_S) as answer:
            return str(json.load(answer)["application"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
