"""What would a practitioner run? The rules of Megatron-LM, then the best batch and chunk of those.

1. Dims are Megatron's: each block's first product by column, its second by row
   (Shoeybi et al., arXiv:1909.08053).
2. Tensor parallelism goes up to the devices that share NVLink, then pipeline stages go across
   nodes: as few as hold the model (Narayanan et al., arXiv:2104.04473, takeaway 1).
3. A model is cut no more than it needs to fit, replicas take the rest (takeaway 2). So where fewer
   tensor-parallel ranks hold it, the fewest are tried too, alone and with data parallelism that
   fills the domain. But what just fits has no room to serve many at once, a thing that training
   does not ask for: twice the stages are tried too.
4. Experts are spread before they are cut, inside the NVLink domain where that is possible: stages
   come before experts across nodes, and expert parallelism is folded into tensor and data
   parallelism (Megatron Core, user guide on mixtures of experts; Liu et al., arXiv:2504.14960). So
   of each grid the most expert parallelism there can be, then as much as data parallelism.
5. Experts across nodes hold the model in fewer stages: data parallelism is raised for as long as
   it takes stages away.

Rules 1 to 5 fix two to sixteen grids. Of each, all limits are judged that memory has room for,
which is told by a formula, as for the masks; the best that satisfies everything is the answer.
Where nothing does, stages grow, then data parallelism, then tensor parallelism shrinks, until
something does.

Invariants: Megatron's dims; tp within the scale-up domain; nothing is drawn: no seed matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.model.layout import LayoutTable
from rl_search.archive import Archive
from rl_search.margins import least, memory_margins
from rl_search.sharded_estimate import memory_of
from rl_search.space import DEGREES, ActionSpace

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_BATCH, _CHUNK = len(DEGREES), len(DEGREES) + 1  # heads


def heuristic(archive: Archive, _: int) -> None:
    """Judge what the rules name; go on to what is beside them only while nothing satisfies all."""
    rules = _Rules.of(archive.space)
    for grids in (rules.named(), *rules.others()):
        if len(grids):
            archive.judge(rules.actions(grids))
        if archive.best is not None:
            return


@dataclass(frozen=True, eq=False)
class _Rules:
    """Grids (tp, dp, pp, ep) whose ep is by rule 4, (n, 4), and for which limits there is room.

    `room`: (n, batches, chunks). `domain`: devices that share the scale-up link.
    """

    space: ActionSpace
    grids: Ints
    room: Bools
    domain: int

    @classmethod
    def of(cls, space: ActionSpace) -> _Rules:
        """Everything under the masks that holds the model under Megatron's dims."""
        domain = space.question.group.domain_devices
        grids = _by_experts(_grids(space, domain))
        room = _room(space, grids)
        some = room.any(axis=(1, 2))
        return cls(space, grids[some], room[some], domain)

    def named(self) -> Ints:
        """The rows of `grids` that rules 2, 3 and 5 name, the most expert parallelism first."""
        if not len(self.grids):
            return np.zeros(0, dtype=np.int64)
        tp, dp, pp, ep = self.grids.T
        found = self._across_nodes(tp == tp.max())
        whole = (dp == 1) & (pp == 1)
        if whole.any():
            found |= (tp == tp[whole].min()) & (pp == 1) & ((dp == 1) | (tp * dp == self.domain))
        rows = np.flatnonzero(found)
        return rows[np.argsort(ep[rows] == dp[rows], kind="stable")]

    def others(self) -> Iterator[Ints]:
        """The rest, one after another: larger pp, then larger dp, then smaller tp."""
        tp, dp, pp, ep = self.grids.T
        for row in np.lexsort((-ep, pp, dp, -tp)).tolist():
            yield np.asarray([row])

    def actions(self, grids: Ints) -> Ints:
        """Rows of `grids` with every limit there is room for, (m, heads)."""
        rows, batches, chunks = np.nonzero(self.room[grids])
        actions = _encoded(self.space, self.grids[grids])[rows]
        actions[:, _BATCH], actions[:, _CHUNK] = batches, chunks
        return actions

    def _across_nodes(self, grids: Bools) -> Bools:
        """Of the grids of one tp: for each dp the fewest stages and twice as many, by rule 5."""
        _, dp, pp, _ = self.grids.T
        found = np.zeros(len(pp), dtype=bool)
        for ranks in np.unique(dp[grids]):
            here = grids & (dp == ranks)
            fewest = pp[here].min()
            roomy = pp[here & (pp >= 2 * fewest)].min(initial=pp.max())
            found |= here & ((pp == fewest) | (pp == roomy))
            if fewest == pp[grids].min():
                break
        return found


def _grids(space: ActionSpace, domain: int) -> Ints:
    """All (tp, dp, pp, ep) under the masks with tp inside a domain, (n, 4)."""
    choices = np.indices(space.sizes[: len(DEGREES)]).reshape(len(DEGREES), -1).T
    state = np.zeros(len(choices), dtype=np.int64)
    for head in range(len(DEGREES)):
        state = space.follow(head, state, choices[:, head])
    kept = choices[state >= 0]
    degrees = enumerate(space.heads[: len(DEGREES)])
    values = [np.asarray(head.values)[kept[:, index]] for index, head in degrees]
    grids = np.stack(values, axis=1).astype(np.int64)
    return np.asarray(grids[grids[:, 0] <= domain])


def _by_experts(grids: Ints) -> Ints:
    """Those whose expert parallelism is one of rule 4."""
    spread: dict[tuple[int, ...], list[int]] = {}
    for *grid, ep in grids.tolist():
        spread.setdefault(tuple(grid), []).append(ep)
    found = []
    for grid, eps in spread.items():
        found += [(*grid, ep) for ep in eps if ep in (max(eps), grid[1])]
    return np.asarray(found, dtype=np.int64).reshape(-1, len(DEGREES))


def _room(space: ActionSpace, grids: Ints) -> Bools:
    """For which limits each grid holds the model and the batch, (n, batches, chunks)."""
    batches, chunks = (len(head.values) for head in space.heads[_BATCH : _CHUNK + 1])
    actions = np.repeat(_encoded(space, grids), batches * chunks, axis=0)
    limits = np.indices((batches, chunks)).reshape(2, -1)
    actions[:, _BATCH], actions[:, _CHUNK] = np.tile(limits, len(grids))
    room = space.contains(actions)
    question, table = space.question, space.decode(actions[room])
    # Under Megatron's dims, as `actions` are: what is not cut otherwise.
    memory = memory_of(question.setting(), table, headroom=question.headroom)
    margins = memory_margins(table, memory, max_model_len=question.max_model_len)
    room[room] = least(margins) >= 0.0
    return room.reshape(len(grids), batches, chunks)


def _encoded(space: ActionSpace, grids: Ints) -> Ints:
    """Grids as actions under Megatron's dims and the first limits, (n, heads)."""
    tp, dp, pp, ep = grids.T
    batch, chunk = (
        np.full(len(grids), head.values[0]) for head in space.heads[_BATCH : _CHUNK + 1]
    )
    return space.encode(LayoutTable(tp, dp, pp, tp * dp // ep, ep, np.ones_like(tp), batch, chunk))
