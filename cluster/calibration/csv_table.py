"""What do the cells of a CSV file say, and where exactly is the one that is wrong?

A file is UTF-8 with or without a byte order mark, comma separated, with any line ends; its first
line names the columns, in any order, and columns nobody asked for are ignored.

Invariant: every problem is a ConfigError naming the file, the line, the column and the fix.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ConfigError

_WHOLE = re.compile(r"\+?[0-9]+(?:\.0*)?")  # spreadsheets write 64.0 for 64
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_LARGEST = 10**9  # no count of tokens, requests or devices reaches it; arrays hold 64 bits


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table: its cells by column, and where it stands (first line is 1)."""

    source: str
    line: int
    cells: Mapping[str, str]

    def wrong(self, column: str, problem: str, *, fix: str) -> ConfigError:
        """The error to raise about this row's cell."""
        return ConfigError(
            source=f"{self.source}, line {self.line}", field=column, problem=problem, fix=fix
        )

    def text(self, column: str) -> str:
        """The cell, which may be empty."""
        return self.cells[column]

    def name(self, column: str) -> str:
        """The cell, which may not be empty."""
        found = self.cells[column]
        if not found:
            raise self.wrong(column, "is empty.", fix="write its name.")
        return found

    def whole(self, column: str) -> int:
        """A whole number from 1 to 10^9."""
        found = self.cells[column]
        if not _WHOLE.fullmatch(found):
            raise self.wrong(
                column,
                f"'{found}' is not a whole number of at least 1.",
                fix="write digits only, such as 8.",
            )
        value = int(found.partition(".")[0])
        if not 1 <= value <= _LARGEST:
            raise self.wrong(
                column, f"{found} is outside 1 to {_LARGEST}.", fix="write a count in that range."
            )
        return value

    def seconds(self, column: str) -> float | None:
        """Seconds of a cell in milliseconds; None where it is empty."""
        found = self.cells[column]
        if not found:
            return None
        value = float(found) / 1e3 if _NUMBER.fullmatch(found) else math.nan
        if not 0.0 < value < math.inf:
            raise self.wrong(
                column,
                f"'{found}' is not a number of milliseconds above zero.",
                fix="write one such as 12.5, or leave the cell empty where there is none.",
            )
        return value


def read_table(path: Path, columns: Sequence[str]) -> tuple[Row, ...]:
    """The rows of the CSV file at `path` with the named columns, blank lines left out.

    Raises ConfigError where the file cannot be read or decoded, is empty, lacks a column, names
    one twice, holds no row, or has a row with more or fewer cells than the first line.
    """
    source = str(path)
    lines = _lines(_decoded(path), source=source)
    first = next(lines, None)
    if first is None:
        raise ConfigError(
            source=source,
            field="",
            problem="is empty.",
            fix=f"write a first line with the columns {','.join(columns)}.",
        )
    header = [cell.strip() for cell in first[1]]
    _check_header(header, columns, source=source)
    rows = []
    for line, cells in lines:
        if len(cells) != len(header):
            raise ConfigError(
                source=f"{source}, line {line}",
                field="",
                problem=f"has {len(cells)} cells where the first line has {len(header)}.",
                fix="give every row one cell per column (empty ones count), and quote commas.",
            )
        named = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
        rows.append(Row(source=source, line=line, cells=named))
    if not rows:
        raise ConfigError(
            source=source,
            field="",
            problem="holds a first line and no rows.",
            fix="add at least one row.",
        )
    return tuple(rows)


def check_unique(rows: Sequence[Row], column: str) -> None:
    """Raise ConfigError, naming both lines, where two rows share the value of `column`."""
    seen: dict[str, int] = {}
    for row in rows:
        value = row.name(column)
        if value in seen:
            raise row.wrong(
                column,
                f"'{value}' is also on line {seen[value]}.",
                fix="give every row a value of its own, or drop one of the two.",
            )
        seen[value] = row.line


def _decoded(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except IsADirectoryError as error:
        raise ConfigError(
            source=str(path), field="", problem="is a directory.", fix="pass the CSV file itself."
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            source=str(path),
            field="",
            problem=f"cannot be read ({error}).",
            fix="pass a CSV file that exists and may be read.",
        ) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError(
            source=f"{path}, line {line}",
            field="",
            problem=f"is not UTF-8 text (byte {raw[error.start]:#04x} at {error.start}).",
            fix="save the file as CSV in UTF-8.",
        ) from error


def _lines(text: str, *, source: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of each line that is not blank."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise ConfigError(
            source=f"{source}, line {line}",
            field="",
            problem=f"is not CSV ({error}).",
            fix="quote cells that hold commas or quotes, and close every quote.",
        ) from error


def _check_header(header: list[str], columns: Sequence[str], *, source: str) -> None:
    missing = [name for name in columns if name not in header]
    if missing:
        split = len(header) == 1 and re.search(r"[;\t|]", header[0])
        raise ConfigError(
            source=source,
            field=missing[0],
            problem=f"the first line has no column named {', '.join(missing)}; "
            f"it has {', '.join(header)}.",
            fix=f"separate columns by commas, not by {split.group()!r}."
            if split
            else f"name the columns {','.join(columns)} (any order).",
        )
    for name in columns:
        if header.count(name) > 1:
            raise ConfigError(
                source=source,
                field=name,
                problem=f"the first line names the column {header.count(name)} times.",
                fix="keep one of them.",
            )
