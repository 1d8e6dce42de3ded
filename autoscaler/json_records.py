"""How is a JSON object read as a frozen dataclass, by the types of its fields?

Every field is required and no other is allowed; a wrong one is named. Fields may be numbers, whole
numbers, strings, enumerations of strings, other dataclasses, tuples of numbers or of dataclasses,
and any of numbers and dataclasses or None.
"""

from __future__ import annotations

import types
import typing
from dataclasses import is_dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar

from autoscaler.json_reader import Reader

T = TypeVar("T")


def read_record(reader: Reader, kind: type[T]) -> T:
    """A `kind` from a reader at its object. Raises ConfigError naming the field."""
    made: Any = kind
    found = {name: _field(reader, name, hint) for name, hint in _hints(made).items()}
    reader.done()
    return typing.cast("T", made(**found))


@lru_cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _field(reader: Reader, name: str, hint: Any) -> object:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return _optional(reader, name, arguments[0])
    if origin is tuple:
        return _several(reader, name, arguments[0])
    if is_dataclass(hint):
        return _nested(reader.child(name), hint)
    if issubclass(hint, StrEnum):
        return _choice(reader, name, hint)
    read = {float: reader.number, int: reader.integer, str: reader.text}[hint]
    return read(name)


def _nested(reader: Reader, kind: Any) -> object:
    return read_record(reader, kind)


def _optional(reader: Reader, name: str, kind: Any) -> object:
    if not is_dataclass(kind):
        return reader.number_or_none(name)
    child = reader.child_or_none(name)
    return None if child is None else _nested(child, kind)


def _several(reader: Reader, name: str, kind: Any) -> object:
    if not is_dataclass(kind):
        return reader.numbers(name)
    return tuple(_nested(child, kind) for child in reader.children(name))


def _choice(reader: Reader, name: str, kind: type[StrEnum]) -> StrEnum:
    value = reader.text(name)
    if value not in list(kind):
        raise reader.error(name, f"is '{value}', not one of {', '.join(kind)}.")
    return kind(value)
