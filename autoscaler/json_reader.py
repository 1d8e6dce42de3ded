"""How is JSON turned into typed values, strictly and with errors that name the field?

A `Reader` wraps one JSON object: each getter checks the type and marks the key as known, `done`
complains about the rest. Null stands for NaN in `number_or_nan` (strict JSON has no NaN, and a
metric that came in as NaN has to survive the log).
"""

from __future__ import annotations

import math

from cluster.errors import ConfigError

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Reader:
    """One JSON object being read. `source` and `path` say where, in every error."""

    def __init__(self, data: object, *, source: str, path: str = "") -> None:
        if not isinstance(data, dict):
            raise ConfigError(
                source=source, field=path, problem=f"is {_kind(data)}, not an object."
            )
        self._data: dict[object, object] = data
        self._source = source
        self._path = path
        self._known: set[object] = set()

    def error(self, key: str, problem: str) -> ConfigError:
        """A ConfigError about field `key`."""
        return ConfigError(source=self._source, field=self._at(key), problem=problem)

    def number(self, key: str) -> float:
        """A finite number."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"is {_kind(value)}, not a number.")
        if not math.isfinite(value):
            raise self.error(key, f"is {value}, not a finite number.")
        return float(value)

    def number_or_nan(self, key: str) -> float:
        """A finite number, or NaN for null."""
        return math.nan if self._get(key) is None else self.number(key)

    def number_or_none(self, key: str) -> float | None:
        """A finite number, or None for null."""
        return None if self._get(key) is None else self.number(key)

    def integer(self, key: str) -> int:
        """A whole number."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"is {_kind(value)}, not a whole number.")
        return value

    def text(self, key: str) -> str:
        """A string."""
        value = self._get(key)
        if not isinstance(value, str):
            raise self.error(key, f"is {_kind(value)}, not a string.")
        return value

    def boolean(self, key: str) -> bool:
        """True or false."""
        value = self._get(key)
        if not isinstance(value, bool):
            raise self.error(key, f"is {_kind(value)}, not true or false.")
        return value

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of finite numbers."""
        items = self._list(key)
        row = Reader(
            {str(i): item for i, item in enumerate(items)},
            source=self._source,
            path=self._at(key),
        )
        return tuple(row.number(str(i)) for i in range(len(items)))

    def named_numbers(self, key: str) -> tuple[tuple[str, float], ...]:
        """An object of finite numbers, in its order."""
        row = self.child(key)
        return tuple((str(name), row.number(str(name))) for name in row._data)

    def child(self, key: str) -> Reader:
        """A nested object."""
        return Reader(self._get(key), source=self._source, path=self._at(key))

    def child_or_none(self, key: str) -> Reader | None:
        """A nested object, or None for null."""
        return None if self._get(key) is None else self.child(key)

    def children(self, key: str) -> tuple[Reader, ...]:
        """A list of nested objects."""
        return tuple(
            Reader(item, source=self._source, path=f"{self._at(key)}[{i}]")
            for i, item in enumerate(self._list(key))
        )

    def done(self) -> None:
        """Raise ConfigError if the object has fields nobody read."""
        unknown = sorted(str(key) for key in self._data.keys() - self._known)
        if unknown:
            known = ", ".join(sorted(str(key) for key in self._known))
            raise self.error(unknown[0], f"is no field of this record. Known: {known}.")

    def _get(self, key: str) -> object:
        self._known.add(key)
        if key not in self._data:
            raise self.error(key, "is missing.")
        return self._data[key]

    def _list(self, key: str) -> list[object]:
        value = self._get(key)
        if not isinstance(value, list):
            raise self.error(key, f"is {_kind(value)}, not a list.")
        return value

    def _at(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")
