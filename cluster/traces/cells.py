"""What number does a cell of a trace hold?

Token counts are whole numbers from 0 to 10^9 (a spreadsheet's 64.0 is 64), measures finite numbers
of at least 0. Anything else is a WrongCellError that names the column.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from cluster.traces.request import MOST_TOKENS
from cluster.traces.source import Source, WrongCellError

_WHOLE = re.compile(r"\s*\+?([0-9]+)(?:\.0*)?\s*")
_NUMBER = re.compile(r"\s*\+?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*")


def tokens(text: str, column: str) -> int:
    """A count of tokens."""
    if text.isdecimal() and len(text) < 10:
        return int(text)
    match = _WHOLE.fullmatch(text)
    value = int(match.group(1)[:12]) if match else MOST_TOKENS + 1
    if value > MOST_TOKENS:
        raise _no_count(column, repr(text))
    return value


def json_tokens(value: object, column: str) -> int:
    """A count of tokens out of JSON."""
    if type(value) is int and 0 <= value <= MOST_TOKENS:
        return value
    if type(value) is float and value.is_integer() and 0 <= value <= MOST_TOKENS:
        return int(value)
    raise _no_count(column, repr(value))


def measure(text: str, column: str) -> float:
    """A finite number of at least 0."""
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not value < math.inf:
        raise _no_measure(column, repr(text))
    return value


def json_measure(value: object, column: str) -> float:
    """A finite number of at least 0 out of JSON."""
    if type(value) in (int, float) and isinstance(value, int | float) and 0 <= value < 1e18:
        return value
    raise _no_measure(column, repr(value))


def csv_rows(source: Source, columns: Sequence[str]) -> Iterator[tuple[int, Any]]:
    """(line, cells of `columns` in that order) of every row; other columns are ignored.

    The cells are a tuple of strings.
    """
    reader = csv.reader(source.lines(), strict=True)
    try:
        header = next((row for row in reader if row), [])
        names = [name.strip() for name in header]
        missing = [name for name in columns if name not in names]
        if missing:
            raise source.wrong(
                reader.line_num,
                missing[0],
                f"the first line has no column named {', '.join(missing)}; "
                f"it has {', '.join(names) or 'none'}.",
                fix=f"begin the file with the line {','.join(columns)}.",
            )
        pick = itemgetter(*(names.index(name) for name in columns))
        width = len(names)
        for cells in reader:
            if len(cells) == width:
                yield reader.line_num, pick(cells)
            elif any(cell.strip() for cell in cells):
                raise source.wrong(
                    reader.line_num,
                    "",
                    f"has {len(cells)} cells where the first line has {width}.",
                    fix="give every row one cell per column; the line may be cut short.",
                )
    except csv.Error as error:
        raise source.wrong(
            reader.line_num,
            "",
            f"is not CSV ({error}).",
            fix="quote cells that hold commas, and close every quote.",
        ) from error


def _no_count(column: str, shown: str) -> WrongCellError:
    return WrongCellError(
        column,
        f"{shown[:60]} is not a whole number of tokens from 0 to 10^9.",
        fix="write digits only, such as 512.",
    )


def _no_measure(column: str, shown: str) -> WrongCellError:
    return WrongCellError(
        column,
        f"{shown[:60]} is not a finite number of at least 0.",
        fix="write a number such as 12.5.",
    )
