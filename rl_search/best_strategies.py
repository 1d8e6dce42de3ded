"""How good is each feasible strategy at its best, and which of two degrees is better doubled?

A strategy is its degrees; batch, chunk and dims stand at the best that satisfies everything.

Shapes: columns (n,). Invariant: best first, each strategy once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.model.layout import LayoutTable
from rl_search.exact import Evaluated
from rl_search.question import Priority, score

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Strategies:
    """Feasible strategies. `index`: the row of each in the table of the search."""

    table: LayoutTable
    index: Ints
    value: Floats

    @classmethod
    def of(cls, evaluated: Evaluated, priority: Priority) -> Strategies:
        """All that satisfy everything."""
        rows = np.flatnonzero(evaluated.ok)
        values = score(evaluated.estimates, priority)[rows]
        order = np.argsort(-values, kind="stable")
        table = evaluated.table.take(rows[order])
        keys = np.stack([table.tp, table.dp, table.pp, table.moe_tp, table.moe_ep], axis=1)
        _, firsts = np.unique(keys, axis=0, return_index=True)
        firsts = np.sort(firsts)
        return cls(table=table.take(firsts), index=rows[order][firsts], value=values[order][firsts])

    def take(self, rows: Ints) -> Strategies:
        """Some of them."""
        return Strategies(
            table=self.table.take(rows), index=self.index[rows], value=self.value[rows]
        )

    def doubled_both(self, *, ep_from: int) -> Iterator[float]:
        """From (TP, EP, PP) with EP >= `ep_from`: the value of twice the EP over twice the TP.

        TP and EP are those of both grids, as in the articles: ep = dp, and moe_tp = tp.
        """
        values = self._by_degrees()
        for (tp, dp, pp, moe_tp, moe_ep), value in values.items():
            if (moe_tp, moe_ep) != (tp, dp) or dp % 2 or dp // 2 < ep_from:
                continue
            other = values.get((2 * tp, dp // 2, pp, 2 * tp, dp // 2))
            if other is not None:
                yield value / other

    def doubled_grid(self, *, ep_from: int) -> Iterator[float]:
        """The same in the experts' grid alone, attention as it is."""
        values = self._by_degrees()
        for (tp, dp, pp, moe_tp, moe_ep), value in values.items():
            if moe_ep % 2 or moe_ep // 2 < ep_from:
                continue
            other = values.get((tp, dp, pp, 2 * moe_tp, moe_ep // 2))
            if other is not None:
                yield value / other

    def _by_degrees(self) -> dict[tuple[int, ...], float]:
        t = self.table
        keys = zip(*(c.tolist() for c in (t.tp, t.dp, t.pp, t.moe_tp, t.moe_ep)), strict=True)
        return dict(zip(keys, self.value.tolist(), strict=True))
