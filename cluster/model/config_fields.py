"""Which value a field of a model configuration holds, and whether it is a sane one.

Every read names its field, so that every complaint can: the file, the dotted field, the value,
the limit, and what to do. Invariant: nothing but ConfigError leaves this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from cluster.errors import ConfigError

# No published model comes near; a larger value is a typing error or an attack on our memory.
MAX_DIMENSION = 10_000_000
MAX_LAYERS = 10_000


@dataclass(frozen=True)
class Fields:
    """The mapping of a configuration with its source and the dotted prefix it was found under."""

    data: Mapping[str, object]
    source: str
    prefix: str = ""

    def fail(self, name: str, *, problem: str, fix: str = "") -> NoReturn:
        """Raise ConfigError for a field."""
        raise ConfigError(source=self.source, field=self.prefix + name, problem=problem, fix=fix)

    def present(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.data.get(name) is not None

    def integer(
        self,
        name: str,
        *,
        default: int | None = None,
        minimum: int = 1,
        maximum: int = MAX_DIMENSION,
    ) -> int:
        """An integer in [minimum, maximum]; `default`, if any, where absent or null."""
        value = self.data.get(name)
        if value is None:
            if default is None:
                self.fail(
                    name,
                    problem="is missing.",
                    fix="take the config.json of the model's own repository.",
                )
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            kind = type(value).__name__
            self.fail(name, problem=f"is {value!r} ({kind}).", fix="write a whole number.")
        if not minimum <= value <= maximum:
            self.fail(
                name,
                problem=f"is {value}, outside {minimum}…{maximum}.",
                fix="write the model's own value.",
            )
        return value

    def optional_integer(self, name: str, *, minimum: int = 1) -> int | None:
        """Like `integer`, None where the field is absent or null."""
        return self.integer(name, minimum=minimum) if self.present(name) else None

    def boolean(self, name: str, *, default: bool) -> bool:
        """A boolean; `default` where the field is absent or null."""
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(name, problem=f"is {value!r}.", fix="write true or false.")
        return value

    def text(self, name: str, *, default: str | None = None) -> str:
        """A string; `default` (if any) where the field is absent or null."""
        value = self.data.get(name)
        if value is None:
            if default is None:
                self.fail(name, problem="is missing.")
            return default
        if not isinstance(value, str):
            self.fail(name, problem=f"is {value!r}.", fix="write a string.")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty where the field is absent or null."""
        value = self.data.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(name, problem=f"is {value!r}.", fix="write a list of strings.")
        return tuple(value)

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers; empty where the field is absent or null."""
        value = self.data.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(
            isinstance(item, int) and not isinstance(item, bool) for item in value
        ):
            self.fail(name, problem=f"is {value!r}.", fix="write a list of whole numbers.")
        return tuple(value)

    def section(self, name: str) -> Fields:
        """A nested mapping. Raises ConfigError where it is absent."""
        value = self.data.get(name)
        if value is None:
            self.fail(name, problem="is missing.")
        if not isinstance(value, Mapping):
            self.fail(name, problem=f"is {value!r}.", fix="write an object.")
        return Fields(value, self.source, f"{self.prefix}{name}.")
