"""Which choices make a strategy, and which of them go together? A multi-discrete space with masks.

A strategy is one index per head:

    tp, dp, pp, ep        degrees: attention tp x dp, stages, expert parallelism (moe_ep)
    batch, chunk          max_num_seqs of a replica, max_num_batched_tokens of a step
    one per operator      along which dim each fused operator of each layer kind is cut, and the
                          residual stream; in the `any` space only

What the articles call (TP, EP, PP) is the case ep = dp. Heads are chosen in this order, and the
masks of a head follow from the heads before it: an automaton whose states are the prefixes of all
degrees that keep the rules (divisibility, topology), then the limits for which the memory that
every assignment of dims takes leaves room (`exact` prunes by the same bound), then the dims that
tp divides. So whatever is chosen under the masks is a layout of the planner's space; the latency
bounds, and memory under the dims chosen, are left to the evaluator.

Invariants: decode(encode(table)) == table; encode(decode(actions)) == actions for actions under
the masks, and every layout that `exact` can pick is one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.sharded_steps import expert_kinds
from cluster.costmodel.sharding import RESIDUAL, read, slots, trellises
from cluster.costmodel.sharding_states import Experts
from cluster.errors import InputError
from cluster.model.layout import Dim, Layout, LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.rules import check_layouts, tp_groups
from rl_search.dims_room import may_fit
from rl_search.enumeration import Space, expand, strategies
from rl_search.margins import least, limit_margins, memory_margins
from rl_search.operator_dims import DIMS, named
from rl_search.question import Question
from rl_search.sharded_estimate import Setting, memory_of

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

DEGREES = ("tp", "dp", "pp", "ep")
LIMITS = ("batch", "chunk")
_BLOCK = 1 << 16  # layouts whose memory bound is worked out at once


@dataclass(frozen=True)
class Head:
    """One choice: its name and the values it is made from (degrees, limits, or dims)."""

    name: str
    values: tuple[int, ...]
    dims: tuple[Dim, ...] = ()

    def spelt(self, index: int) -> str:
        """The choice in words, `tp 8` or `qkv along 1`."""
        if self.dims:
            return f"{self.name} {self.dims[index].value}"
        return f"{self.name} {self.values[index]}"


@dataclass(frozen=True, eq=False)
class ActionSpace:
    """The strategies of one question. Actions are (n, heads) indices into the heads' values.

    `allow[h][state]` are the values of head h that may follow, (states, values); `step[h]` the
    state that each leads to. The first head has one state.
    """

    question: Question
    heads: tuple[Head, ...]
    allow: tuple[Bools, ...]
    step: tuple[Ints, ...]

    @classmethod
    def of(cls, question: Question) -> ActionSpace:
        """All that is under the masks, which may be nothing: `size` is then 0."""
        degrees, room = _rooms(question)
        heads = [Head(name, values) for name, values in _values(degrees)]
        allow, step = _prefixes(degrees, heads)
        n, batches, chunks = room.shape
        heads += [Head("batch", question.options.batches), Head("chunk", question.options.chunks)]
        allow += [np.asarray(room.any(axis=2)), room.reshape(n * batches, chunks)]
        step.append(np.arange(n * batches).reshape(n, batches))
        own, kinds = _dims(question, degrees)
        step.append(np.broadcast_to(np.repeat(kinds, batches)[:, None], (n * batches, chunks)))
        for head, allowed in own:
            heads.append(head)
            allow.append(allowed)
            step.append(np.broadcast_to(np.arange(len(allowed))[:, None], allowed.shape))
        return cls(question, tuple(heads), tuple(allow), tuple(step))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Values per head: the `nvec` of a multi-discrete space."""
        return tuple(len(head.values) for head in self.heads)

    @property
    def grid(self) -> int:
        """Combinations of all values, masks apart."""
        return prod(self.sizes)

    @property
    def layouts(self) -> int:
        """Degrees with some room, times batches and chunks, whatever the dims."""
        return self.allow[len(DEGREES) + 1].size

    @cached_property
    def size(self) -> int:
        """Strategies under the masks."""
        counts = np.ones(int(self.step[-1].max(initial=0)) + 1, dtype=np.int64)
        for allowed, onward in zip(reversed(self.allow), reversed(self.step), strict=True):
            counts = np.where(allowed, counts[np.maximum(onward, 0)], 0).sum(axis=1)
        return int(counts[0]) if len(counts) else 0

    @cached_property
    def anywhere(self) -> tuple[Bools, ...]:
        """Per head the values that are in some strategy: masks that know no other head."""
        return tuple(np.asarray(allowed.any(axis=0)) for allowed in self.allow)

    def masks(self, actions: Ints) -> tuple[Bools, ...]:
        """Per head what the heads before it allow in `actions`: (n, values) each.

        After a choice that was not allowed, everything is.
        """
        state = np.zeros(len(actions), dtype=np.int64)
        found = []
        for head in range(len(self.heads)):
            found.append(self.mask(head, state))
            state = self.follow(head, state, actions[:, head])
        return tuple(found)

    def mask(self, head: int, state: Ints) -> Bools:
        """The values of `head` allowed in each state, (n, values); all where the state is -1."""
        allowed = self.allow[head]
        if not len(allowed):
            return np.ones((len(state), allowed.shape[1]), dtype=bool)
        return np.asarray(allowed[np.maximum(state, 0)] | (state < 0)[:, None])

    def follow(self, head: int, state: Ints, choice: Ints) -> Ints:
        """The states after `choice`, -1 where it was not allowed."""
        if not len(self.allow[head]):
            return np.full(len(state), -1)
        known = np.maximum(state, 0)
        right = (state >= 0) & self.allow[head][known, choice]
        return np.where(right, self.step[head][known, choice], -1)

    def contains(self, actions: Ints) -> Bools:
        """Which actions keep every mask, (n,)."""
        state = np.zeros(len(actions), dtype=np.int64)
        for head in range(len(self.heads)):
            state = self.follow(head, state, actions[:, head])
        return state >= 0

    def repaired(self, actions: Ints) -> Ints:
        """The actions with every choice that a mask forbids moved to the nearest it allows."""
        if not self.size:
            return actions
        fixed, state = actions.copy(), np.zeros(len(actions), dtype=np.int64)
        for head, size in enumerate(self.sizes):
            apart = np.abs(np.arange(size)[None] - fixed[:, head, None]).astype(np.float64)
            fixed[:, head] = np.where(self.mask(head, state), apart, np.inf).argmin(axis=1)
            state = self.follow(head, state, fixed[:, head])
        return fixed

    def frozen(self, names: Collection[str]) -> ActionSpace:
        """The same heads, those of `names` held at the least value there is after every prefix."""
        first = [
            allowed & (allowed.cumsum(axis=1) == 1) if head.name in names else allowed
            for head, allowed in zip(self.heads, self.allow, strict=True)
        ]
        return replace(self, allow=tuple(first))

    def sample(self, rng: np.random.Generator, n: int) -> Ints:
        """Strategies drawn head by head, uniformly from what the masks allow, (n, heads)."""
        actions = np.zeros((n, len(self.heads)), dtype=np.int64)
        state = np.zeros(n, dtype=np.int64)
        for head, size in enumerate(self.sizes):
            luck = np.where(self.mask(head, state), rng.random((n, size)), -1.0)
            actions[:, head] = luck.argmax(axis=1)
            state = self.follow(head, state, actions[:, head])
        return actions

    def decode(self, actions: Ints) -> LayoutTable:
        """The layouts that actions stand for, also of those no mask allows."""
        tp, dp, pp, ep, batch, chunk = (
            np.asarray(head.values)[actions[:, index]]
            for index, head in enumerate(self.heads[: len(DEGREES) + len(LIMITS)])
        )
        groups = tp_groups(self.question.group, tp)
        replicas = np.maximum(1, groups // (dp * pp))
        table = LayoutTable(tp, dp, pp, np.maximum(1, tp * dp // ep), ep, replicas, batch, chunk)
        own = self.heads[len(DEGREES) + len(LIMITS) :]
        if not own:
            return table
        codes = np.stack(
            [
                np.asarray([DIMS.index(dim) for dim in head.dims])[actions[:, -len(own) + index]]
                for index, head in enumerate(own)
            ]
        )
        return table.with_dims(*named(self.question.model, codes.astype(np.int8)))

    def layout(self, action: Sequence[int]) -> Layout:
        """The layout that one action stands for."""
        return self.decode(np.asarray([action], dtype=np.int64)).row(0)

    def encode(self, table: LayoutTable) -> Ints:
        """The actions of layouts, (n, heads). Raises InputError for one outside the space."""
        degrees = (table.tp, table.dp, table.pp, table.moe_ep)
        columns = (*degrees, table.max_num_seqs, table.max_num_batched_tokens)
        actions = np.zeros((len(table), len(self.heads)), dtype=np.int64)
        for index, column in enumerate(columns):
            head = self.heads[index]
            known = {value: position for position, value in enumerate(head.values)}
            for row, value in enumerate(column.tolist()):
                if value not in known:
                    raise _outside(head, value)
                actions[row, index] = known[value]
        own = self.heads[len(columns) :]
        for row in range(len(table)):
            names = () if table.dims is None else table.assignments[int(table.dims[row])]
            chosen, tokens_cut = read(self.question.model, names)
            dims = [*chosen.values(), Dim.ROW if tokens_cut else Dim.REPLICATED]
            if not own and names:
                raise InputError(
                    f"{table.row(row).describe()} cuts operators one by one, which the "
                    f"`{self.question.options.space.value}` space does not. Fix: search the `any` "
                    "space."
                )
            for index, (head, dim) in enumerate(zip(own, dims, strict=bool(own))):
                actions[row, len(columns) + index] = head.dims.index(dim)
        return actions

    def described(self) -> str:
        """The heads and how much there is, in a line."""
        degrees = ", ".join(f"{h.name} {len(h.values)}" for h in self.heads[: len(DEGREES) + 2])
        dims = len(self.heads) - len(DEGREES) - len(LIMITS)
        return (
            f"{len(self.heads)} heads ({degrees}, dims of {dims} operators): "
            f"{self.grid:.3g} combinations, {self.size:.3g} under the masks"
        )


def _rooms(question: Question) -> tuple[LayoutTable, Bools]:
    """Degrees that keep the rules, and for which limits memory may have room: (n, batches, chunks).

    Degrees without any are left out.
    """
    options = question.options
    table = strategies(question.model, question.group, options)
    # A batch that every dp divides, so that only what the degrees break is told here.
    table = replace(table, max_num_seqs=table.dp)
    report = check_layouts(
        question.model, question.group, table, cross_domain_tp=question.cross_domain_tp
    )
    table = table.take(report.ok)
    shape = (len(table), len(options.batches), len(options.chunks))
    wide = expand(table, options)
    room = np.zeros(len(wide), dtype=bool)
    setting = question.setting()
    for first in range(0, len(wide), _BLOCK):
        rows = np.arange(first, min(first + _BLOCK, len(wide)))
        block = wide.take(rows)
        split = np.flatnonzero(block.max_num_seqs % block.dp == 0)
        room[rows[split]] = _may_hold(question, setting, block.take(split))
    found = room.reshape(shape)
    some = np.flatnonzero(found.any(axis=(1, 2)))
    return table.take(some), found[some]


def _may_hold(question: Question, setting: Setting, table: LayoutTable) -> Bools:
    """Rows that fit under default dims, or might under others."""
    memory = memory_of(setting, table, headroom=question.headroom)
    margins = memory_margins(table, memory, max_model_len=question.max_model_len)
    fits = least(margins) >= 0.0
    if question.options.space is not Space.ANY:
        return np.asarray(fits)
    fits |= (least(limit_margins(table)) >= 0.0) & may_fit(
        setting, table, memory, max_model_len=question.max_model_len
    )
    return np.asarray(fits)


def _values(table: LayoutTable) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, column in zip(DEGREES, (table.tp, table.dp, table.pp, table.moe_ep), strict=True):
        yield name, tuple(np.unique(column).tolist()) or (1,)


def _prefixes(table: LayoutTable, heads: Sequence[Head]) -> tuple[list[Bools], list[Ints]]:
    """The automaton of the degrees: a state is a prefix that some row of `table` begins with."""
    columns = (table.tp, table.dp, table.pp, table.moe_ep)
    codes = np.stack(
        [np.searchsorted(head.values, column) for head, column in zip(heads, columns, strict=True)],
        axis=1,
    )
    allow, step = [], []
    state = np.zeros(len(table), dtype=np.int64)
    for depth, head in enumerate(heads):
        states = int(state.max(initial=-1)) + 1
        _, onward = np.unique(codes[:, : depth + 1], axis=0, return_inverse=True)
        onward = onward.reshape(-1)
        allowed = np.zeros((states, len(head.values)), dtype=bool)
        leads = np.full(allowed.shape, -1)
        allowed[state, codes[:, depth]] = True
        leads[state, codes[:, depth]] = onward
        allow.append(allowed)
        step.append(leads)
        state = onward
    # Rows of `table` are in the order of their last state: both are sorted by the degrees.
    order = np.empty(len(table), dtype=np.int64)
    order[state] = np.arange(len(table))
    step[-1] = np.where(allow[-1], order[np.maximum(step[-1], 0)] if len(order) else -1, -1)
    return allow, step


def _dims(question: Question, table: LayoutTable) -> tuple[list[tuple[Head, Bools]], Ints]:
    """The heads of the dims with what each class of degrees allows; the class of each row.

    A class is (tp, what happens to experts): nothing else decides which dims there are.
    """
    model = question.model
    kinds = expert_kinds(model, table)
    if question.options.space is not Space.ANY:
        return [], np.zeros(len(table), dtype=np.int64)
    pairs, classes = np.unique(np.stack([table.tp, kinds], axis=1), axis=0, return_inverse=True)
    allowed = [_dims_of(model, int(tp), Experts(int(kind))) for tp, kind in pairs]
    heads = []
    for index, name in enumerate(_names(model)):
        dims = slots(model)[index].dims if index < len(slots(model)) else _STREAM
        head = Head(name, tuple(range(len(dims))), dims)
        may = [[dim in choices[index] for dim in dims] for choices in allowed]
        heads.append((head, np.asarray(may, dtype=bool).reshape(len(pairs), len(dims))))
    return heads, classes.reshape(-1).astype(np.int64)


_STREAM = (Dim.REPLICATED, Dim.ROW)


def _names(model: ModelSpec) -> list[str]:
    many = len({slot.kind for slot in slots(model)}) > 1
    names = [
        f"{model.layers[slot.kind][0].name}:{slot.name}" if many else slot.name
        for slot in slots(model)
    ]
    return [*names, RESIDUAL]


def _dims_of(model: ModelSpec, tp: int, experts: Experts) -> list[set[Dim]]:
    """The dims of every slot, and of the residual stream last, that `tp` ranks can have."""
    if tp == 1:  # all dims are the same
        return [*({slot.default} for slot in slots(model)), {Dim.REPLICATED}]
    found: dict[tuple[int, str], set[Dim]] = {}
    for trellis in trellises(model, experts, tokens_cut=False):
        for slot, stage in zip(trellis.slots, trellis.choices, strict=True):
            # Which dims there are, and what tp must divide, is the same from every state.
            choices = next(iter(stage.values()))
            found[slot.kind, slot.name] = {
                step.dim for step in choices if not step.divides or step.divides % tp == 0
            }
    return [*(found[slot.kind, slot.name] for slot in slots(model)), set(_STREAM)]


def _outside(head: Head, value: int) -> InputError:
    return InputError(
        f"{head.name} = {value} is not in the space, only "
        f"{', '.join(str(known) for known in head.values)}. Fix: use one of these."
    )
