"""Where do the results of `simulate` go? Files that can be written are known before it begins."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from cli.files import about, check_writable
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


def write_requests(requests: Iterable[Finished], path: Path) -> None:
    """A line per finished request, in the order in which they finished."""
    with about(path, option="--requests"), path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        names = [field.name for field in fields(Finished)]
        lines.writerow(names)
        lines.writerows([getattr(request, name) for name in names] for request in requests)
