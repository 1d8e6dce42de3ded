"""A layout: how one replica is cut, and how many replicas there are.

Attention runs on tp x dp ranks, experts on moe_tp x moe_ep ranks of the same devices, so
tp * dp == moe_tp * moe_ep; pp repeats that grid per pipeline stage. The (TP, EP, PP) notation
is the case tp = moe_tp = TP, dp = moe_ep = EP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Dims = tuple[tuple[str, "Dim"], ...]
"""Choices that differ from the Megatron scheme, by name; `kind:name` is of one layer kind only."""


class Dim(StrEnum):
    """Along which dimension of its weight a fused operator is cut over the tensor-parallel ranks.

    The residual stream (`residual`) and the attention core (`attention_core`) have no weights: of
    the stream `0` cuts the tokens, of the core `1` cuts the heads; whole on every rank is `-`.
    """

    ROW = "0"  # input dimension: partial sums, all-reduce or reduce-scatter after
    COLUMN = "1"  # output dimension: all-gather after, or none if the next is cut by row
    REPLICATED = "-"  # whole on every rank


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Degrees of one replica, its batch limits, and the number of replicas.

    `max_num_seqs`: sequences in a decode batch of one replica (all dp ranks together).
    `max_num_batched_tokens`: tokens of one engine step of one dp rank (the prefill chunk).
    `dims`: per fused operator where it differs from the default (Megatron: column then row), in
    the words of `cluster.costmodel.sharding`.
    """

    tp: int = 1
    dp: int = 1
    pp: int = 1
    moe_tp: int = 1
    moe_ep: int = 1
    replicas: int = 1
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    dims: Dims = ()

    @property
    def devices_per_replica(self) -> int:
        """Devices one replica occupies."""
        return self.tp * self.dp * self.pp

    @property
    def devices(self) -> int:
        """Devices all replicas occupy."""
        return self.devices_per_replica * self.replicas

    def describe(self) -> str:
        """Short name, e.g. `TP4 DP2 PP1 (experts TP1 EP8) x3`."""
        text = f"TP{self.tp}"
        if self.dp > 1:
            text += f" DP{self.dp}"
        if self.pp > 1:
            text += f" PP{self.pp}"
        if self.moe_tp * self.moe_ep > 1 and (self.moe_tp, self.moe_ep) != (self.tp, self.dp):
            text += f" (experts TP{self.moe_tp} EP{self.moe_ep})"
        elif self.moe_ep > 1:
            text += f" EP{self.moe_ep}"
        return f"{text} x{self.replicas}"


_COLUMNS = (
    "tp",
    "dp",
    "pp",
    "moe_tp",
    "moe_ep",
    "replicas",
    "max_num_seqs",
    "max_num_batched_tokens",
)


@dataclass(frozen=True)
class LayoutTable:
    """Many layouts as columns of equal length n: what the cost model is vectorised over.

    Row i has the per-operator dims `assignments[dims[i]]`; `dims` None: all are the default ones.
    """

    tp: Ints
    dp: Ints
    pp: Ints
    moe_tp: Ints
    moe_ep: Ints
    replicas: Ints
    max_num_seqs: Ints
    max_num_batched_tokens: Ints
    dims: Ints | None = None
    assignments: tuple[Dims, ...] = ((),)

    def __len__(self) -> int:
        return len(self.tp)

    @classmethod
    def from_layouts(cls, layouts: Iterable[Layout]) -> LayoutTable:
        """Columns from rows."""
        listed = list(layouts)
        table = cls.from_rows(
            [tuple(getattr(layout, name) for name in _COLUMNS) for layout in listed]
        )
        if not any(layout.dims for layout in listed):
            return table
        known: dict[Dims, int] = {(): 0}
        indices = [known.setdefault(layout.dims, len(known)) for layout in listed]
        return table.with_dims(np.asarray(indices, dtype=np.int64), tuple(known))

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[int, ...]]) -> LayoutTable:
        """Columns from tuples in the order of the fields."""
        columns = np.asarray(rows, dtype=np.int64).reshape(-1, len(_COLUMNS)).T
        return cls(*columns)

    def row(self, index: int) -> Layout:
        """The layout at `index`."""
        return Layout(
            tp=int(self.tp[index]),
            dp=int(self.dp[index]),
            pp=int(self.pp[index]),
            moe_tp=int(self.moe_tp[index]),
            moe_ep=int(self.moe_ep[index]),
            replicas=int(self.replicas[index]),
            max_num_seqs=int(self.max_num_seqs[index]),
            max_num_batched_tokens=int(self.max_num_batched_tokens[index]),
            dims=() if self.dims is None else self.assignments[int(self.dims[index])],
        )

    def take(self, indices: NDArray[np.bool_] | Ints) -> LayoutTable:
        """The rows selected by a mask or by indices."""
        made = LayoutTable(*(getattr(self, name)[indices] for name in _COLUMNS))
        return made if self.dims is None else made.with_dims(self.dims[indices], self.assignments)

    def with_dims(self, dims: Ints, assignments: tuple[Dims, ...]) -> LayoutTable:
        """The same rows, row i with the per-operator dims `assignments[dims[i]]`."""
        return replace(self, dims=dims, assignments=assignments)

    def under_default_dims(self, index: int) -> int | None:
        """Where the layout at `index` is without its dims; None: it has none, or is not there."""
        if self.dims is None or not self.assignments[int(self.dims[index])]:
            return None
        plain = [dims for dims, names in enumerate(self.assignments) if not names]
        same = np.isin(self.dims, plain)
        for name in _COLUMNS:
            same &= getattr(self, name) == getattr(self, name)[index]
        return int(np.argmax(same)) if same.any() else None

    def followed_by(self, other: LayoutTable) -> LayoutTable:
        """The rows of both, these first."""
        columns = (np.concatenate([getattr(self, name), getattr(other, name)]) for name in _COLUMNS)
        made = LayoutTable(*columns)
        if self.dims is None and other.dims is None:
            return made
        known = {dims: index for index, dims in enumerate(self.assignments)}
        new = [known.setdefault(dims, len(known)) for dims in other.assignments]
        own, added = (
            np.zeros(len(table), dtype=np.int64) if table.dims is None else table.dims
            for table in (self, other)
        )
        dims = np.concatenate([own, np.asarray(new, dtype=np.int64)[added]])
        return made.with_dims(dims, tuple(known))

    @property
    def devices_per_replica(self) -> Ints:
        """Devices one replica occupies, shape (n,)."""
        return self.tp * self.dp * self.pp
