"""Some rows of a table of estimates, or the rows of two: nested columns handled as one.

Invariant: fields that are no columns are those of the first table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.estimate import EstimateTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def taken(estimates: EstimateTable, rows: Ints) -> EstimateTable:
    """Only the rows at `rows`."""
    made = _mapped(estimates, estimates, lambda column, _: column[rows])
    assert isinstance(made, EstimateTable)
    return made


def spliced(estimates: EstimateTable, rows: Ints, other: EstimateTable) -> EstimateTable:
    """`estimates` with the rows at `rows` replaced by all of `other`."""

    def put(column: Floats, new: Floats) -> Floats:
        changed = column.copy()
        changed[rows] = new
        return changed

    made = _mapped(estimates, other, put)
    assert isinstance(made, EstimateTable)
    return made


def followed_by(estimates: EstimateTable, other: EstimateTable) -> EstimateTable:
    """The rows of both, those of `estimates` first."""
    made = _mapped(estimates, other, lambda one, two: np.concatenate([one, two]))
    assert isinstance(made, EstimateTable)
    return made


def _mapped(tree: object, other: object, put: Callable[[Floats, Floats], Floats]) -> object:
    """Every column in nested dataclasses and dicts through `put`, all else as it is."""
    if isinstance(tree, np.ndarray):
        assert isinstance(other, np.ndarray)
        return put(tree, other)
    if isinstance(tree, dict):
        assert isinstance(other, dict)
        return {name: _mapped(part, other[name], put) for name, part in tree.items()}
    if is_dataclass(tree) and not isinstance(tree, type):
        changed = {
            field.name: _mapped(getattr(tree, field.name), getattr(other, field.name), put)
            for field in fields(tree)
        }
        return replace(tree, **changed)
    return tree
