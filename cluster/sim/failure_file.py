"""Which failures does a file list? YAML, one entry a failure.

    - {kind: crash, at: 120s, target: main/1}
    - {kind: slow, at: 10min, target: node/0, for: 2min, factor: 3}

Fields mean what they mean in the words of `cluster.sim.failures`; numbers are seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from cluster.errors import ConfigError, InputError
from cluster.sim.failures import Failure, parse_failure

_FIX = "compare with docs/examples/failures.yaml."


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["crash", "freeze", "hang", "slow"]
    at: float | str
    target: str
    lasts: float | str | None = Field(default=None, alias="for")
    factor: float | None = None

    @property
    def words(self) -> str:
        """As on the command line."""
        said = f"{self.kind}@{_plain(self.at)}:{self.target}"
        for name, value in (("for", self.lasts), ("factor", self.factor)):
            if value is not None:
                said += f",{name}={_plain(value)}"
        return said


def read_failures(path: Path) -> tuple[Failure, ...]:
    """The failures of a file. Raises ConfigError naming the file, the entry and the field."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(
            source=str(path), field="", problem=f"cannot be read ({error}).", fix=_FIX
        ) from error
    try:
        entries = TypeAdapter(list[_Entry]).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            source=str(path),
            field=".".join(str(part) for part in first["loc"]),
            problem=f"{first['msg']} ({error.error_count()} problem(s) in all).",
            fix=_FIX,
        ) from error
    return tuple(_failure(entry, source=f"{path}, entry {n}") for n, entry in enumerate(entries))


def _failure(entry: _Entry, *, source: str) -> Failure:
    try:
        return parse_failure(entry.words)
    except InputError as error:
        raise ConfigError(source=source, field="", problem=str(error)) from error


def _plain(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.9f}"
