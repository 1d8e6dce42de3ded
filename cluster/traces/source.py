"""Which lines does a trace file have, and which of its rows is wrong?

Files are UTF-8 text (a byte order mark and any line ends are fine), plain or gzipped: told by their
first two bytes. They are streamed, so a trace may be larger than memory.

Invariant: every problem is a ConfigError naming the file, the line, what is wrong and the fix.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar, cast

from cluster.errors import ConfigError
from cluster.traces.options import WindowOptions
from cluster.traces.request import TraceRequest

NO_OUTPUT = "no output tokens"

_GZIP_MAGIC = b"\x1f\x8b"
_T = TypeVar("_T")

# seconds since any fixed moment, prompt tokens, output tokens, blocks
Parsed = tuple[float, int, int, tuple[int, ...]]


class WrongCellError(Exception):
    """A cell that does not parse; whoever reads the row knows file and line."""

    def __init__(self, column: str, problem: str, *, fix: str) -> None:
        super().__init__(problem)
        self.column = column
        self.problem = problem
        self.fix = fix


@dataclass(frozen=True, kw_only=True)
class Source:
    """A trace file being read; `skipped` counts the rows left out, by reason."""

    path: Path
    windows: WindowOptions = field(default_factory=WindowOptions)
    skipped: Counter[str] = field(default_factory=Counter)
    _open: ExitStack = field(default_factory=ExitStack, repr=False, compare=False)

    def closing(self, requests: Iterable[_T]) -> Iterator[_T]:
        """`requests`, read from here. The file is closed with them, and at a wrong row.

        Not by each reader: the error about a row holds those that wait for the next one.
        """
        with self._open:
            yield from requests

    def wrong(self, line: int, column: str, problem: str, *, fix: str) -> ConfigError:
        """The error to raise about a line (0: the file as a whole)."""
        where = f"{self.path}, line {line}" if line else str(self.path)
        return ConfigError(source=where, field=column, problem=problem, fix=fix)

    def lines(self) -> Generator[str, None, None]:
        """The lines of the file with their ends."""
        try:
            with _opened(self.path) as raw:
                self._open.callback(raw.close)
                # Lines are decoded one by one, so that a byte that is no UTF-8 has a line number.
                yield from self._decoded(raw)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.wrong(
                0, "", f"is damaged or cut short ({error}).", fix="copy the .gz file again."
            ) from error
        except OSError as error:
            raise self.wrong(
                0,
                "",
                f"cannot be read ({error.strerror or error}).",
                fix="pass a trace file that exists and may be read.",
            ) from error

    def _decoded(self, raw: IO[bytes]) -> Iterator[str]:
        line = 0
        try:
            for line, encoded in enumerate(raw, start=1):
                yield encoded.decode("utf-8-sig" if line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise self.wrong(
                line,
                "",
                f"is not UTF-8 text (byte {error.object[error.start]:#04x}).",
                fix="save the trace as UTF-8 text, or gzip it; other packings are not read.",
            ) from error


def requests_of(
    source: Source,
    rows: Iterable[tuple[int, _T]],
    parse: Callable[[_T], Parsed],
    *,
    block_tokens: int = 0,
) -> Iterator[TraceRequest]:
    """The requests that `parse` makes of (line, row); times count from the first row.

    Rows without output tokens are failed requests: skipped and counted. A prompt without tokens
    and a time before that of the row above are errors.
    """
    first_s: float | None = None
    last_s = 0.0
    for line, row in rows:
        try:
            time_s, prompt, output, blocks = parse(row)
        except WrongCellError as wrong:
            raise source.wrong(line, wrong.column, wrong.problem, fix=wrong.fix) from wrong
        if first_s is None:
            first_s = time_s
        arrival_s = time_s - first_s
        if arrival_s < last_s:
            raise source.wrong(
                line,
                "",
                f"is {last_s - arrival_s:g} s before the row above it.",
                fix="sort the file by its time column.",
            )
        last_s = arrival_s
        if output == 0:
            source.skipped[NO_OUTPUT] += 1
            continue
        if prompt == 0:
            raise source.wrong(
                line,
                "",
                "has a prompt of 0 tokens.",
                fix="drop the row, or give the prompt at least 1 token.",
            )
        yield TraceRequest(arrival_s, prompt, output, blocks=blocks, block_tokens=block_tokens)
    if first_s is None:
        raise source.wrong(0, "", "holds no rows.", fix="add at least one request.")


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP_MAGIC
    if packed:
        return cast(IO[bytes], gzip.open(path, "rb"))  # reads as one, says mypy not
    return path.open("rb")
