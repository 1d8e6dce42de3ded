"""What does the log say of a request that has ended? One line of JSON.

Where the lines go is `logs.access` of the serving configuration; the logger is `shardwise.access`.
They are written by a thread of their own every `EVERY_S` seconds; if `MOST_WAITING` lines wait,
further ones are dropped and the loss is told, since requests come first.

Invariant: a line holds text of a prompt or an answer only where `logs.prompts` asks for it, and
never an API key.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from dataclasses import dataclass, field, fields
from logging.handlers import RotatingFileHandler, WatchedFileHandler
from pathlib import Path

import msgspec

from serving.request_texts import Texts
from serving.settings.config import LogsSection

LOGGER = "shardwise.access"
EVERY_S = 0.25
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
    """Takes lines and has them written to `target` by a thread, all that came in `every_s` at once.

    A thread woken for each would cost a request ten times as much.
    """

    def __init__(
        self,
        target: logging.Handler,
        *,
        every_s: float = EVERY_S,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        target.setFormatter(logging.Formatter("%(message)s"))
        self._handler = _Waiting(target, most=most_waiting)
        self._every_s = every_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()
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
        self._closing.set()
        self._thread.join()
        self._handler.close()

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            self._handler.flush()
        self._handler.flush()


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


class _Waiting(logging.Handler):
    """Keeps records until `flush`, which puts them into words and hands them on as one."""

    def __init__(self, target: logging.Handler, *, most: int) -> None:
        super().__init__()
        self._target, self._most = target, most
        self._records: deque[logging.LogRecord] = deque()
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record, or drop it."""
        if len(self._records) < self._most:
            self._records.append(record)
        else:
            self._dropped += 1

    def flush(self) -> None:
        """Write what is there."""
        lines: list[str] = []
        for _ in range(len(self._records)):
            record = self._records.popleft()
            try:
                lines.append(record.getMessage())
            except Exception:
                self.handleError(record)  # as logging does: one bad line ends no other
        if lines:
            attributes = {"name": LOGGER, "levelno": logging.INFO, "levelname": "INFO"}
            self._target.handle(logging.makeLogRecord(attributes | {"msg": "\n".join(lines)}))
        dropped, self._dropped = self._dropped, 0
        if dropped:
            logger.warning("%d lines of the request log were dropped", dropped)

    def close(self) -> None:
        """Close the target too."""
        self._target.close()
        super().close()
