"""How many seconds after a trace's first row is `2023-11-16 18:17:03.9799600`?

Days are counted from 1970-01-01 in the proleptic Gregorian calendar with years that begin in
March, so that the leap day is the last one (Hinnant, "chrono-compatible low-level date algorithms",
days_from_civil). Minutes since then are whole numbers, and only the minutes after the first row's
become a float: 100 ns survive in traces of years.

A trace has many rows per minute, so a minute is parsed once.
"""

from __future__ import annotations

import re

from cluster.traces.source import WrongCellError

_MINUTE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})[ T]([0-9]{2}):([0-9]{2}):")
_SECOND = re.compile(r"([0-9]{2}(?:\.[0-9]*)?)(?:Z|z|\+00:?00)?\s*")
_MINUTE_CHARACTERS = len("2023-11-16 18:17:")
_DAYS_IN_MONTH = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def days_from_civil(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 to a date."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


class Clock:
    """Reads timestamps of one trace: seconds since the minute of the first one it was shown."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._minute = ""
        self._minute_s = 0.0
        self._first: int | None = None

    def __call__(self, text: str) -> float:
        """Seconds from the first timestamp's minute to `text`."""
        if text[:_MINUTE_CHARACTERS] != self._minute:
            self._turn_to(text)
        match = _SECOND.fullmatch(text, _MINUTE_CHARACTERS)
        second = float(match.group(1)) if match else 61.0
        if second >= 61.0:  # 60 is a leap second
            raise self._wrong(text)
        return self._minute_s + second

    def _turn_to(self, text: str) -> None:
        stripped = text[:_MINUTE_CHARACTERS]
        match = _MINUTE.fullmatch(stripped)
        if not match:
            raise self._wrong(text)
        year, month, day, hour, minute = map(int, match.groups())
        if not (1 <= month <= 12 and 1 <= day <= _days_in(year, month) and hour < 24):
            raise self._wrong(text)
        if minute >= 60:
            raise self._wrong(text)
        minutes = (days_from_civil(year, month, day) * 24 + hour) * 60 + minute
        if self._first is None:
            self._first = minutes
        self._minute_s = (minutes - self._first) * 60.0
        self._minute = stripped

    def _wrong(self, text: str) -> WrongCellError:
        return WrongCellError(
            self._column,
            f"'{text[:40]}' is not a date and time.",
            fix="write it like 2023-11-16 18:17:03.9799600 (T for the blank, Z or +00:00 at the "
            "end are fine; other time zones are not read).",
        )


def _days_in(year: int, month: int) -> int:
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 29 if month == 2 and leap else _DAYS_IN_MONTH[month - 1]
