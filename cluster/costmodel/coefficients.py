"""What fraction of a device's peak do real kernels reach, and what do engines add? Named numbers.

Every constant of the cost model that is on no datasheet is one positive number with a dotted name,
`gemm.hopper.fp8.mbu`, so that calibration can fit it, a file can hold it and an estimate can say
where it is from. Formulas keep positions into `values`: many runs with different coefficients are
then one gather. Names, formulas and sources are listed in `docs/cost-model.md`.

Invariants: names are unique; values are positive and finite; shares (`mbu`, `mfu`, `efficiency`,
`one_shot`, `fp8_share`) are at most 1, so that no estimate beats the roofline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cluster.errors import ConfigError

Floats = NDArray[np.float64]
UNKNOWN = "unknown"  # a source that no file states
SHARES = ("mbu", "mfu", "efficiency", "one_shot", "fp8_share", "hot")


def is_share(name: str) -> bool:
    """Whether the coefficient is a share of something, at most 1."""
    return name.rsplit(".", 1)[-1].endswith(SHARES)


@dataclass(frozen=True, kw_only=True, eq=False)
class Coefficients:
    """All constants by name. `sources`: where from, by the longest prefix of the name.

    Raises ConfigError for a value that is not positive and finite, or a share above 1.
    """

    names: tuple[str, ...]
    values: Floats
    sources: Mapping[str, str]
    provenance: str

    def __post_init__(self) -> None:
        for name, value in zip(self.names, self.values, strict=True):
            if not (np.isfinite(value) and value > 0.0):
                raise _bad(name, f"is {value}.", fix="give a positive number.")
            if is_share(name) and value > 1.0:
                raise _bad(name, f"is {value}, more than the whole.", fix="give at most 1.")

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    def __contains__(self, name: object) -> bool:
        return name in self._positions

    def position(self, *names: str) -> int:
        """Where the first of `names` that exists stands in `values`.

        Raises KeyError naming all of them: a formula asked for a coefficient that no file gives.
        """
        for name in names:
            found = self._positions.get(name)
            if found is not None:
                return found
        raise KeyError(f"no coefficient is called {' or '.join(names)}")

    def value(self, *names: str) -> float:
        """The value of the first of `names` that exists."""
        return float(self.values[self.position(*names)])

    def source(self, name: str) -> str:
        """Where the number is from: the text of the longest prefix of `name`."""
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            text = self.sources.get(".".join(parts[:length]))
            if text is not None:
                return text
        return self.sources.get("", UNKNOWN)

    def with_values(self, values: Floats) -> Coefficients:
        """The same names with other values, in the same order."""
        return replace(self, values=values)

    def updated(self, changes: Mapping[str, float], *, source: str) -> Coefficients:
        """With `changes` applied, new names appended, and `source` named for each of them."""
        names = (*self.names, *(name for name in changes if name not in self))
        values = np.concatenate([self.values, np.zeros(len(names) - len(self.names))])
        positions = {name: index for index, name in enumerate(names)}
        for name, value in changes.items():
            values[positions[name]] = value
        sources = {**self.sources, **dict.fromkeys(changes, source)}
        return replace(self, names=names, values=values, sources=sources)


def _bad(name: str, problem: str, *, fix: str) -> ConfigError:
    return ConfigError(source="calibration", field=name, problem=problem, fix=fix)
