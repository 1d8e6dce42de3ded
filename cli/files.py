"""Can a file be written, and what is said if not? What every command that writes results shares."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.errors import InputError


def check_writable(path: Path, *, option: str) -> None:
    """Raise InputError where `path` cannot be written. What is there stays as it is."""
    with about(path, option=option):
        path.parent.mkdir(parents=True, exist_ok=True)
        there = path.exists()
        path.open("ab").close()
        if not there:
            path.unlink()


def write_json(data: object, path: Path, *, option: str, indent: int | None = None) -> None:
    """Write JSON text; without `indent` on one line, many times as fast. Raises InputError."""
    text = json.dumps(data, allow_nan=False, indent=indent)
    with about(path, option=option):
        path.write_text(f"{text}\n", encoding="utf-8")


def write_text(text: str, path: Path, *, option: str) -> None:
    """Write `text`. Raises InputError."""
    with about(path, option=option):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@contextmanager
def about(path: Path, *, option: str) -> Iterator[None]:
    """Errors of writing `path` named by the option that asked for it."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{option} {path} cannot be written ({error}).") from error
