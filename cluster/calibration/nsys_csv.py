"""Which tables does `nsys stats --format csv` hold? Text to tables, whatever surrounds them.

nsys prints notices, "Processing ... with ..." and a title before each table, a blank line after,
and several tables one after the other if asked for several reports. A table is known by its
header: `Total Time (ns)` with `Instances` and `Name` is cuda_gpu_kern_sum, and so on (`_REPORTS`).
Columns of versions before 2022 (`Average`, `Operations`, `Time(%)`) are read too, as are quoted
thousands and other units (`--timeunit`).

Invariants: every row of a table has a number in every numeric column that is used; seconds and
bytes come out. A file without a known table is a ConfigError that says what it is instead.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ConfigError

REPORTS = (
    "cuda_gpu_kern_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
    "cuda_api_sum",
    "nvtx_gpu_proj_sum",
)
HOW_TO = f"nsys stats --report {','.join(REPORTS)} --format csv REPORT.nsys-rep > summary.csv"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of a summary: seconds and/or bytes of `count` things called `name`."""

    name: str
    count: int
    seconds: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """Where a report's figures stand: lower-case names without unit; "" for what it lacks."""

    name: tuple[str, ...]
    count: tuple[str, ...]
    seconds: str = ""
    bytes: str = ""


_REPORTS: Mapping[str, _Columns] = {
    "cuda_gpu_kern_sum": _Columns(name=("name",), count=("instances",), seconds="total time"),
    "cuda_gpu_mem_time_sum": _Columns(
        name=("operation", "name"), count=("count", "operations"), seconds="total time"
    ),
    "cuda_gpu_mem_size_sum": _Columns(
        name=("operation", "name"), count=("count", "operations"), bytes="total"
    ),
    "cuda_api_sum": _Columns(name=("name",), count=("num calls",), seconds="total time"),
    "nvtx_gpu_proj_sum": _Columns(
        name=("range",), count=("range instances",), seconds="total proj time"
    ),
}
_UNITS: Mapping[str, float] = {
    **{"s": 1.0, "sec": 1.0, "ms": 1e-3, "msec": 1e-3, "us": 1e-6, "usec": 1e-6, "µs": 1e-6},
    **{"ns": 1e-9, "nsec": 1e-9, "": 1e-9},
    **{"b": 1.0, "bytes": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20},
}
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?$")
_HEADER = re.compile(r"^(?P<name>[^()]*?)\s*(\((?P<unit>[^)]*)\))?$")
_TITLE = re.compile(r"\((?P<report>[a-z][a-z0-9_]+)(:[\w:]+)?\):?\s*$")


def read_tables(path: Path) -> Mapping[str, tuple[Row, ...]]:
    """Report name → rows of every known table in the file at `path`.

    Raises ConfigError for a file that cannot be read, is empty, is not nsys's CSV, holds another
    report only, or breaks off in a row.
    """
    lines = _text(path).splitlines()
    tables: dict[str, tuple[Row, ...]] = {}
    title, strange = "", []
    index = 0
    while index < len(lines):
        heading = _TITLE.search(lines[index])
        title = heading["report"] if heading else title
        header = _split(lines[index])
        report = _report(header)
        if report is not None:
            body = list(_body(lines, index + 1))
            rows = tuple(_rows(report, header, body, source=str(path)))
            index += len(body)
            if report == "cuda_api_sum" and not any(row.name.startswith("cu") for row in rows):
                strange.append(title or "calls of another interface than CUDA")
            else:
                tables[report] = (*tables.get(report, ()), *rows)
        elif _is_header(header):
            strange.append(title or ",".join(header))
        index += 1
    if not tables:
        raise ConfigError(
            source=str(path), field="", problem=_problem(lines, strange), fix=f"run `{HOW_TO}`"
        )
    return tables


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            source=str(path), field="", problem=f"cannot be read ({error.strerror})."
        ) from error
    if not raw.strip():
        raise ConfigError(
            source=str(path), field="", problem="the file is empty.", fix=f"run `{HOW_TO}`"
        )
    if b"\0" in raw[:65536]:
        kind = "an SQLite export" if raw.startswith(b"SQLite format 3") else "a binary report"
        raise ConfigError(
            source=str(path), field="", problem=f"this is {kind}, not a CSV.", fix=f"run `{HOW_TO}`"
        )
    return raw.decode("utf-8-sig", errors="replace")


def _problem(lines: Sequence[str], strange: Sequence[str]) -> str:
    skipped = [line.strip() for line in lines if line.startswith("SKIPPED")]
    if skipped:
        return (
            f"nsys found nothing to report ({skipped[0]}). Profile with `--trace=cuda,nvtx` and, "
            "for engines that replay CUDA graphs, `--cuda-graph-trace=node`."
        )
    if any(line.startswith(("+--", " -----")) for line in lines):
        return "this is nsys's table for reading, not its CSV (`--format csv`)."
    wanted = "one of " + ", ".join(REPORTS)
    if strange:
        return f"the wrong report ({strange[0]}); needed is {wanted}."
    return f"not a CSV of `nsys stats`: no line is the header of {wanted}."


def _split(line: str) -> list[str]:
    return next(csv.reader([line]), []) if "," in line else []


def _key(column: str) -> tuple[str, str]:
    """A column's name in lower case and its unit: 'Total Time (ns)' to ('total time', 'ns')."""
    found = _HEADER.match(column.strip())
    return (found["name"].lower(), (found["unit"] or "").lower()) if found else (column, "")


def _is_header(fields: Sequence[str]) -> bool:
    keys = [_key(field)[0] for field in fields]
    return any(key.startswith(("time", "total", "start", "duration")) for key in keys)


def _report(fields: Sequence[str]) -> str | None:
    """Which report has this header."""
    keys = {_key(field)[0] for field in fields}
    if "category" in keys or "nvtx range" in keys:
        return None  # API and kernels in one table; kernels split by range
    for report, columns in _REPORTS.items():
        counted = not keys.isdisjoint(columns.count) and not keys.isdisjoint(columns.name)
        if counted and (columns.seconds or columns.bytes) in keys:
            return report
    return None


def _body(lines: Sequence[str], start: int) -> Iterator[list[str]]:
    """The rows after a header, up to a blank line or whatever nsys prints next."""
    for line in lines[start:]:
        if not line.strip() or line.startswith(("Processing", " **", "**", "SKIPPED", "NOTICE")):
            return
        yield _split(line) or [line]


def _rows(
    report: str, header: Sequence[str], body: Sequence[Sequence[str]], *, source: str
) -> Iterator[Row]:
    columns = _REPORTS[report]
    place = {_key(field)[0]: (at, _key(field)[1]) for at, field in enumerate(header)}
    count_at = next(place[name][0] for name in columns.count if name in place)
    name_at = next(place[name][0] for name in columns.name if name in place)
    for number, row in enumerate(body, start=1):
        where = f"row {number} of {report}"
        if len(row) != len(header):
            raise ConfigError(
                source=source,
                field=where,
                problem=f"{len(row)} fields where the header has {len(header)}: {','.join(row)!r}.",
                fix="the file was cut off or edited; write it again.",
            )

        def figure(column: str, row: Sequence[str] = row, where: str = where) -> float:
            if not column:
                return 0.0
            at, unit = place[column]
            if unit not in _UNITS:
                raise ConfigError(
                    source=source, field=header[at], problem=f"an unknown unit '{unit}'."
                )
            scale = 1.0 if not unit and column == columns.bytes else _UNITS[unit]
            return _number(row[at], source=source, field=f"{where}, {header[at]}") * scale

        yield Row(
            name=row[name_at].strip(),
            count=round(_number(row[count_at], source=source, field=where)),
            seconds=figure(columns.seconds),
            bytes=figure(columns.bytes),
        )


def _number(text: str, *, source: str, field: str) -> float:
    plain = text.replace(",", "") if _THOUSANDS.match(text.strip()) else text
    try:
        value = float(plain)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise ConfigError(source=source, field=field, problem=f"'{text}' is not a number >= 0.")
    return value
