"""A layout: how one replica is cut, and how many replicas there are.

Attention runs on tp x dp ranks, experts on moe_tp x moe_ep ranks of the same devices, so
tp * dp == moe_tp * moe_ep; pp repeats that grid per pipeline stage. The (TP, EP, PP) notation
is the case tp = moe_tp = TP, dp = moe_ep = EP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Dim(StrEnum):
    """Along which dimension of its weight a fused operator is cut."""

    ROW = "0"  # input dimension: partial sums, all-reduce or reduce-scatter after
    COLUMN = "1"  # output dimension: all-gather after, or none if the next is cut by row
    REPLICATED = "-"  # whole on every rank


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Degrees of one replica, its batch limits, and the number of replicas.

    `max_num_seqs`: sequences in a decode batch of one replica (all dp ranks together).
    `max_num_batched_tokens`: tokens of one engine step of one dp rank (the prefill chunk).
    `dims`: per fused operator where it differs from the default (Megatron: column then row).
    """

    tp: int = 1
    dp: int = 1
    pp: int = 1
    moe_tp: int = 1
    moe_ep: int = 1
    replicas: int = 1
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    dims: tuple[tuple[str, Dim], ...] = ()

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
    """Many layouts as columns of equal length n: what the cost model is vectorised over."""

    tp: Ints
    dp: Ints
    pp: Ints
    moe_tp: Ints
    moe_ep: Ints
    replicas: Ints
    max_num_seqs: Ints
    max_num_batched_tokens: Ints

    def __len__(self) -> int:
        return len(self.tp)

    @classmethod
    def from_layouts(cls, layouts: Iterable[Layout]) -> LayoutTable:
        """Columns from rows (per-operator dims are not carried)."""
        rows = [tuple(getattr(layout, name) for name in _COLUMNS) for layout in layouts]
        return cls.from_rows(rows)

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
        )

    def take(self, indices: NDArray[np.bool_] | Ints) -> LayoutTable:
        """The rows selected by a mask or by indices."""
        return LayoutTable(*(getattr(self, name)[indices] for name in _COLUMNS))

    @property
    def devices_per_replica(self) -> Ints:
        """Devices one replica occupies, shape (n,)."""
        return self.tp * self.dp * self.pp
