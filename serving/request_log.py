"""What does the log say of a request that has ended? One line of JSON.

Where the lines go is `logs.access` of the serving configuration; the logger is `shardwise.access`.
They are written by a thread of their own; if it falls behind by `MOST_WAITING` lines, further ones
are dropped and the loss is told, since requests come first.

Invariant: a line holds text of a prompt or an answer only where `logs.prompts` asks for it, and
never an API key.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field, fields
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler, WatchedFileHandler
from pathlib import Path
from queue import Full, Queue
from typing import Any

import msgspec

from serving.config import LogsSection
from serving.request_texts import Texts

LOGGER = "shardwise.access"
MOST_WAITING = 10_000  # lines

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True, kw_only=True)
class RequestLine:
    """One ended request; docs/operations.md has the fields. None: not known, or there was none."""

    time: str
    request_id: str
    trace_id: str | None
    span_id: str | None
    operation: str
    key: str | None
    priority: str | None
    model: str | None
    pool: str | None
    tier: int
    changes: tuple[str, ...]
    stream: bool | None
    status: int
    finish: str
    error: str | None
    prompt_tokens: int | None
    output_tokens: int | None
    queue_s: float | None
    ttft_s: float | None
    duration_s: float
    attempts: int
    retries: int
    moves: int
    resumes: int
    replicas: tuple[str, ...]
    texts: Texts | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """The line: JSON."""
        line = {name: getattr(self, name) for name in NAMES}
        if self.texts is not None:
            line |= self.texts.told()
        return msgspec.json.encode(line).decode()


NAMES = tuple(each.name for each in fields(RequestLine) if each.name != "texts")


class RequestLog:
    """Takes lines and has them written by a thread. `close` waits for those that are there."""

    def __init__(self, target: logging.Handler, *, most_waiting: int = MOST_WAITING) -> None:
        target.setFormatter(logging.Formatter("%(message)s"))
        waiting: Queue[logging.LogRecord] = Queue(maxsize=most_waiting)
        self._target = target
        self._handler = _Bounded(waiting)
        self._listener = _Patient(waiting, target)
        self._listener.start()
        self._logger = logging.getLogger(LOGGER)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        self._logger.addHandler(self._handler)

    def write(self, line: RequestLine) -> None:
        """Log a line; never waits."""
        self._logger.info(line)

    def close(self) -> None:
        """Write what is there and end."""
        self._logger.removeHandler(self._handler)
        self._listener.stop()
        self._target.close()


def open_request_log(section: LogsSection) -> RequestLog | None:
    """The log as configured, None if there is none. Raises OSError if it cannot be written."""
    match section.access:
        case None:
            return None
        case "stdout":
            return RequestLog(_stdout())
        case "ray":
            return RequestLog(_beside_serve())
        case Path() as path:
            path.parent.mkdir(parents=True, exist_ok=True)
            return RequestLog(WatchedFileHandler(path, encoding="utf-8"))  # logrotate may move it


def _stdout() -> logging.Handler:
    return logging.StreamHandler(sys.__stdout__)  # Serve puts a logger of its own over sys.stdout


def _beside_serve() -> logging.Handler:
    """A file next to this replica's own log in Ray's directory, which rotates as that does."""
    for handler in logger.handlers:
        serve = getattr(handler, "target", handler)  # Serve buffers
        if isinstance(serve, RotatingFileHandler):
            return RotatingFileHandler(
                Path(serve.baseFilename).with_suffix(".access.jsonl"),
                maxBytes=serve.maxBytes,
                backupCount=serve.backupCount,
                encoding="utf-8",
            )
    return _stdout()


class _Bounded(QueueHandler):
    """Hands records over as they are, or drops them; they are put into words on the other side."""

    def __init__(self, waiting: Queue[logging.LogRecord]) -> None:
        super().__init__(waiting)
        self._dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except Full:
            self._dropped += 1
            return
        if self._dropped:
            logger.warning("%d lines of the request log were dropped", self._dropped)
            self._dropped = 0


class _Patient(QueueListener):
    """Waits to be told to stop where the queue is full; the base class would raise."""

    def __init__(self, waiting: Queue[Any], target: logging.Handler) -> None:
        super().__init__(waiting, target)
        self._waiting = waiting

    def enqueue_sentinel(self) -> None:
        self._waiting.put(None)
