"""Where do the results of `simulate` go? Files that can be written are known before it begins."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from cli.plots import check_ending
from cluster.errors import InputError
from cluster.sim.record import Finished


@dataclass(frozen=True, kw_only=True)
class Files:
    """Where to write what was asked for."""

    json: Path | None
    plots: tuple[Path, ...]
    chrome_trace: Path | None
    decisions: Path | None
    requests: Path | None

    @property
    def named(self) -> tuple[tuple[str, Path], ...]:
        """(option, path) of each."""
        single = (
            ("--json", self.json),
            ("--chrome-trace", self.chrome_trace),
            ("--decisions", self.decisions),
            ("--requests", self.requests),
        )
        plots = (("--plot", path) for path in self.plots)
        return (*((option, path) for option, path in single if path is not None), *plots)

    def check(self) -> None:
        """Raise InputError where one cannot be written, or two are one."""
        for path in self.plots:
            check_ending(path)
        taken: dict[Path, str] = {}
        for option, path in self.named:
            check_writable(path, option=option)
            other = taken.setdefault(path.resolve(), option)
            if other != option:
                raise InputError(f"{other} and {option} are both to be {path}. Fix: name two.")


def check_writable(path: Path, *, option: str) -> None:
    """Raise InputError where `path` cannot be written. What is there stays as it is."""
    with _about(path, option=option):
        path.parent.mkdir(parents=True, exist_ok=True)
        there = path.exists()
        path.open("ab").close()
        if not there:
            path.unlink()


def write_json(data: object, path: Path, *, option: str, indent: int | None = None) -> None:
    """Write JSON text; without `indent` on one line, many times as fast. Raises InputError."""
    text = json.dumps(data, allow_nan=False, indent=indent)
    with _about(path, option=option):
        path.write_text(f"{text}\n", encoding="utf-8")


def write_requests(requests: Iterable[Finished], path: Path) -> None:
    """A line per finished request, in the order in which they finished."""
    with _about(path, option="--requests"), path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        names = [field.name for field in fields(Finished)]
        lines.writerow(names)
        lines.writerows([getattr(request, name) for name in names] for request in requests)


@contextmanager
def _about(path: Path, *, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{option} {path} cannot be written ({error}).") from error
