"""In which of the known formats is a trace file?

A detector looks at the first line that is not blank. To read one more format: write a reader, and
add a line to `FORMATS`.

Invariant: no line is of two formats.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from cluster.errors import UnknownNameError
from cluster.traces.csv_formats import AZURE_COLUMNS, BURSTGPT_COLUMNS, read_azure, read_burstgpt
from cluster.traces.json_formats import MOONCAKE_KEYS, QWEN_KEYS, read_mooncake, read_qwen
from cluster.traces.request import TraceRequest
from cluster.traces.servegen import SERVEGEN_COLUMNS, read_servegen
from cluster.traces.source import Source


@dataclass(frozen=True, kw_only=True)
class TraceFormat:
    """A file format; `shape` shows a user how its first line looks."""

    name: str
    shape: str
    detects: Callable[[str], bool]
    read: Callable[[Source], Iterator[TraceRequest]]


def _has_columns(line: str, *, columns: tuple[str, ...]) -> bool:
    return set(columns) <= {cell.strip().strip('"') for cell in line.split(",")}


def _keys(line: str) -> set[str]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return set()
    return set(record) if isinstance(record, dict) else set()


def _is_mooncake(line: str) -> bool:
    keys = _keys(line)
    return set(MOONCAKE_KEYS) <= keys and "chat_id" not in keys


def _is_qwen(line: str) -> bool:
    return set(QWEN_KEYS) <= _keys(line)


def _object(keys: tuple[str, ...]) -> str:
    return "{" + ", ".join(f'"{key}": …' for key in keys) + "}"


FORMATS: tuple[TraceFormat, ...] = (
    TraceFormat(
        name="azure",
        shape=",".join(AZURE_COLUMNS),
        detects=partial(_has_columns, columns=AZURE_COLUMNS),
        read=read_azure,
    ),
    TraceFormat(
        name="burstgpt",
        shape=",".join(BURSTGPT_COLUMNS),
        detects=partial(_has_columns, columns=BURSTGPT_COLUMNS),
        read=read_burstgpt,
    ),
    TraceFormat(
        name="servegen",
        shape=",".join(SERVEGEN_COLUMNS),
        detects=partial(_has_columns, columns=SERVEGEN_COLUMNS),
        read=read_servegen,
    ),
    TraceFormat(
        name="mooncake", shape=_object(MOONCAKE_KEYS), detects=_is_mooncake, read=read_mooncake
    ),
    TraceFormat(name="qwen", shape=_object(QWEN_KEYS), detects=_is_qwen, read=read_qwen),
)


def format_named(name: str) -> TraceFormat:
    """The format of that name. Raises UnknownNameError."""
    for known in FORMATS:
        if known.name == name:
            return known
    raise UnknownNameError(kind="trace format", name=name, known=(known.name for known in FORMATS))


def format_of(source: Source, first: str) -> TraceFormat:
    """The format whose first line looks like `first`. Raises ConfigError."""
    for known in FORMATS:
        if known.detects(first):
            return known
    shapes = "; ".join(f"{known.name}: {known.shape}" for known in FORMATS)
    raise source.wrong(
        1,
        "",
        f"'{first.strip()[:80]}' begins no known trace format.",
        fix=f"begin the file as one of these do (more columns are fine): {shapes}.",
    )
