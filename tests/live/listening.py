"""Which sockets of an instance listen, and which row of the security page says so?"""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from tests.live.instance import REPOSITORY, LiveInstance

PAGE = REPOSITORY / "docs" / "security.md"


@dataclass(frozen=True, order=True)
class Listening:
    """A listening socket, and what its process calls itself."""

    title: str
    address: str
    port: int


def sockets_of(instance: LiveInstance) -> list[Listening]:
    """TCP sockets of the instance's processes that take connections."""
    head = psutil.Process(int((instance.home / "instance" / "head.pid").read_text()))
    below = (found for p in head.children(recursive=True) for found in _of(p, _title(p)))
    return sorted([*_of(head, "serving.head"), *below])  # whatever a test runs in its place


def beyond_loopback(instance: LiveInstance) -> list[Listening]:
    """Those that other machines reach."""
    return [found for found in sockets_of(instance) if found.address != "127.0.0.1"]


def documented() -> tuple[str, ...]:
    """What processes are called in the table of the page, in its order."""
    section = PAGE.read_text().partition("## What listens where")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return tuple(row.split("`")[1] for row in rows)


def row_of(found: Listening) -> str | None:
    """The first row whose process this is."""
    return next((name for name in documented() if name in found.title), None)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""


def _of(process: psutil.Process, title: str) -> list[Listening]:
    try:
        return [
            Listening(title, each.laddr.ip.removeprefix("::ffff:"), each.laddr.port)
            for each in process.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN
        ]
    except psutil.Error:  # it has just ended
        return []
