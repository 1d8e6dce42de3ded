"""Who may ask? A file of API keys: hashed, with a class, models and rates each.

    keys:
      - name: search-team
        sha256: 2bb80d53...            # of the key; `shardwise key search-team` makes both
        priority: vip                  # the highest class it may ask for, and its default
        models: [smollm2-135m-instruct]  # default: all
        requests_per_minute: 600         # default: no limit
        tokens_per_minute: 200000        # prompt and output; default: no limit

Keys are random and long, so a plain SHA-256 of them tells nobody anything (it is passwords that
need slow hashes). The file is watched: a change is in force within seconds; one with mistakes is
refused as a whole, and the keys before it stay.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.errors import ConfigError
from cluster.priority import Priority

PREFIX = "sw-"
LOOK_EVERY_S = 5.0

logger = logging.getLogger("ray.serve")


class Key(BaseModel):
    """One key's rights. `sha256`: hexadecimal, of the key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=128)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    priority: Priority = Priority.STANDARD
    models: tuple[str, ...] | None = None
    requests_per_minute: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    tokens_per_minute: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    def may_use(self, model: str) -> bool:
        """Whether a model is among its own."""
        return self.models is None or model in self.models


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[Key, ...]


def new_key() -> str:
    """A key nobody can guess: 256 bits."""
    return PREFIX + secrets.token_urlsafe(32)


def hashed(key: str) -> str:
    """As the file holds it."""
    return hashlib.sha256(key.encode()).hexdigest()


def load_keys(path: Path) -> tuple[Key, ...]:
    """The keys of a file. Raises ConfigError."""
    source = str(path)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problem = f"cannot be read ({error})."
        raise ConfigError(source=source, field="", problem=problem) from error
    fix = "`shardwise key NAME` prints a key and its entry."
    if not isinstance(data, dict):
        raise ConfigError(source=source, field="", problem="has no list 'keys'.", fix=fix)
    try:
        keys = _File.model_validate(data).keys
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]  # a key may be in it
        raise ConfigError(
            source=source,
            field=".".join(str(part) for part in first["loc"]),
            problem=f"{first['msg']} ({error.error_count()} problem(s) in all).",
            fix=fix,
        ) from error
    for what, values in (
        ("name", [key.name for key in keys]),
        ("sha256", [key.sha256 for key in keys]),
    ):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise ConfigError(
                source=source,
                field=f"keys.{values.index(twice)}.{what}",
                problem=f"'{twice}' is there more than once.",
                fix="every key has a name and a hash of its own.",
            )
    return keys


class KeyRing:
    """The keys of a file, looked at again when it changes."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._keys: dict[str, Key] = {}
        self._stamp = self._stamped()
        self._looked_s = clock()
        self._take(load_keys(path))

    def find(self, presented: str) -> Key | None:
        """The key's rights, None if it is none of ours."""
        self._look()
        # Found by the hash of what was presented: how long that takes tells nothing of any key.
        return self._keys.get(hashed(presented))

    def named(self, name: str) -> Key | None:
        """The rights of the key of this name."""
        self._look()
        return next((key for key in self._keys.values() if key.name == name), None)

    def _look(self) -> None:
        now_s = self._clock()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        stamp = self._stamped()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._take(load_keys(self._path))
        except ConfigError as error:
            logger.warning("the API keys stay as they were: %s", error)
        else:
            logger.info("API keys read anew: %d", len(self._keys))

    def _take(self, keys: tuple[Key, ...]) -> None:
        self._keys = {key.sha256: key for key in keys}

    def _stamped(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return (found.st_mtime_ns, found.st_ino, found.st_size)
