"""What does one sharding choice per fused operator mean for a model? Walks through its layers.

A layer is a chain of operators with one choice (`Dim`) each; between them activations are in one of
four states (`sharding_states`), and every choice needs one and gives one (`sharding_walk`). So an
assignment of dims is exactly one walk, with the collectives it meets on the way: a `Recipe`, priced
by `sharded_steps`. All walks through a layer kind together are a `Trellis`, which a search can run
through slot by slot. One more choice is the `residual` stream's between blocks, of all layers
alike, because interleaved kinds share it: `-` whole on every rank (Megatron, arXiv:1909.08053),
`0` cut by tokens (Megatron's sequence parallelism, arXiv:2205.05198).

Invariants: the default dims are Megatron's; their recipe costs what `steps.step_parts` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod

from cluster.costmodel.sharding_states import (
    Choice,
    Collective,
    Cut,
    Env,
    Exchange,
    Experts,
    State,
    Unit,
)
from cluster.costmodel.sharding_walk import ATTENTION_CORE, KNOWN, Slot, Walk
from cluster.errors import InputError, UnknownNameError
from cluster.model import operators as op
from cluster.model.layout import Dim, Dims
from cluster.model.model_spec import Group, LayerKind, ModelSpec, Operator

RESIDUAL = "residual"

_ALL = (Dim.COLUMN, Dim.ROW, Dim.REPLICATED)
_HEADS = (Dim.COLUMN, Dim.REPLICATED)


@dataclass(frozen=True)
class Trellis:
    """All walks through one layer kind: per slot, from every reachable state, its choices."""

    slots: tuple[Slot, ...]
    start: Env
    choices: tuple[Mapping[Env, tuple[Choice, ...]], ...]
    count: int  # layers of the kind


@dataclass(frozen=True)
class Recipe:
    """What an assignment does in one step of one model.

    `cuts` per row of the chain, `whole_cores` per layer kind, `exchanges` with how many of each.
    """

    cuts: tuple[Cut, ...]
    whole_cores: tuple[bool, ...]
    exchanges: tuple[tuple[Exchange, int], ...]
    tokens_cut: bool


@cache
def slots(model: ModelSpec) -> tuple[Slot, ...]:
    """Everything a dim is chosen for except the residual stream, kind by kind in order.

    Kinds with an operator that is in no pair of the vocabulary have none: they stay as they are.
    """
    made: list[Slot] = []
    row = 0
    for index, (kind, _) in enumerate(model.layers):
        ops = [o for o in kind.operators if o.rows and o.cols]
        known = all(o.name in KNOWN for o in ops)
        for position, operator in enumerate(ops):
            if known and operator.name in (op.ATTENTION_OUT, op.LINEAR_OUT):
                made.append(Slot(index, ATTENTION_CORE, -1, Dim.COLUMN, _HEADS))
            if known:
                dims = _HEADS if operator.name == op.KV_UP else _ALL
                made.append(Slot(index, operator.name, row + position, default(operator), dims))
        row += len(ops)
    return tuple(made)


def default(operator: Operator) -> Dim:
    """The Megatron scheme: column then row, the rest whole."""
    if operator.group is Group.REPLICATED:
        return Dim.REPLICATED
    return Dim.ROW if operator.name in op.ROW_SECOND else Dim.COLUMN


def spelt(model: ModelSpec, chosen: Mapping[Slot, Dim], *, tokens_cut: bool) -> Dims:
    """Dims as a layout carries them: what differs from the default, kinds told apart if need be."""
    found: list[tuple[str, Dim]] = [(RESIDUAL, Dim.ROW)] if tokens_cut else []
    by_name: dict[str, list[Slot]] = {}
    for slot in slots(model):
        by_name.setdefault(slot.name, []).append(slot)
    for name, group in by_name.items():
        dims = {chosen.get(slot, slot.default) for slot in group}
        if len(dims) == 1:
            same = dims.pop()
            if any(same is not slot.default for slot in group):
                found.append((name, same))
            continue
        found += [
            (f"{model.layers[slot.kind][0].name}:{name}", chosen[slot])
            for slot in group
            if chosen.get(slot, slot.default) is not slot.default
        ]
    return tuple(sorted(found))


def read(model: ModelSpec, dims: Dims) -> tuple[dict[Slot, Dim], bool]:
    """The choice of every slot, and whether the residual stream is cut by tokens.

    Raises UnknownNameError for a name that is no operator of the model, InputError for a dim that
    the operator does not have.
    """
    given = dict(dims)
    chosen: dict[Slot, Dim] = {}
    used = {RESIDUAL}
    for slot in slots(model):
        names = (f"{model.layers[slot.kind][0].name}:{slot.name}", slot.name)
        used.update(names)
        dim = next((given[name] for name in names if name in given), slot.default)
        if dim not in slot.dims:
            raise _no_such_dim(slot.name, dim, slot.dims)
        chosen[slot] = dim
    for name in given:
        if name not in used:
            raise UnknownNameError(kind=f"fused operator of {model.name}", name=name, known=used)
    stream = given.get(RESIDUAL, Dim.REPLICATED)
    if stream is Dim.COLUMN:
        raise _no_such_dim(RESIDUAL, stream, (Dim.ROW, Dim.REPLICATED))
    return chosen, stream is Dim.ROW


@cache
def trellises(model: ModelSpec, experts: Experts, *, tokens_cut: bool) -> tuple[Trellis, ...]:
    """The walks through each layer kind that has choices."""
    start = Env(State.TOKENS if tokens_cut else State.FULL)
    made = []
    for index, (kind, count) in enumerate(model.layers):
        own = tuple(slot for slot in slots(model) if slot.kind == index)
        if not own:
            continue
        stages: list[Mapping[Env, tuple[Choice, ...]]] = []
        reached = {start}
        for slot in own:
            walk = Walk(model, kind, slot, experts, start.x)
            stages.append({env: tuple(walk.choices(env)) for env in sorted(reached, key=repr)})
            reached = {choice.env for found in stages[-1].values() for choice in found}
        assert reached == {start}, "every layer hands the residual stream on as it got it"
        made.append(Trellis(own, start, tuple(stages), count))
    return tuple(made)


def walks(model: ModelSpec, experts: Experts) -> int:
    """How many assignments a layout with tp > 1 has, divisibility apart: the size of its space."""
    stages = (s for t in trellises(model, experts, tokens_cut=False) for s in t.choices)
    return 2 * prod(len(next(iter(stage.values()))) for stage in stages)


@cache
def recipe(model: ModelSpec, dims: Dims, experts: Experts) -> Recipe:
    """Walk `dims` through every layer kind. Raises as `read` does."""
    chosen, tokens_cut = read(model, dims)
    cuts, whole = default_cuts(model), [False] * len(model.layers)
    counted: dict[Exchange, int] = {}
    walked = trellises(model, experts, tokens_cut=tokens_cut)
    for trellis in walked:
        env = trellis.start
        for slot, stage in zip(trellis.slots, trellis.choices, strict=True):
            options = stage[env]
            # Experts whose grid is their choice have one option, whatever the dims say.
            step = next((c for c in options if c.dim is chosen[slot]), options[0])
            env = step.env
            if slot.row < 0:
                whole[slot.kind] = step.cut is Cut.WHOLE
            else:
                cuts[slot.row] = step.cut
            for exchange in step.exchanges:
                counted[exchange] = counted.get(exchange, 0) + trellis.count
    seen = {trellis.slots[0].kind for trellis in walked}
    for index, (kind, count) in enumerate(model.layers):
        if index not in seen:
            for exchange in _megatron_exchanges(model, kind, experts):
                counted[exchange] = counted.get(exchange, 0) + count
    return Recipe(tuple(cuts), tuple(whole), tuple(sorted(counted.items())), tokens_cut)


def default_cuts(model: ModelSpec) -> list[Cut]:
    """How each row of the chain is cut by Megatron, the output head last."""
    scheme = {Dim.COLUMN: Cut.COLUMN, Dim.ROW: Cut.ROW, Dim.REPLICATED: Cut.WHOLE}
    rows = [o for kind, _ in model.layers for o in kind.operators if o.rows and o.cols]
    return [scheme[default(o)] for o in rows] + [Cut.COLUMN]


def _megatron_exchanges(model: ModelSpec, kind: LayerKind, experts: Experts) -> Iterator[Exchange]:
    yield Exchange(Collective.ALL_REDUCE, model.hidden)
    if not (kind.is_moe and experts is Experts.EXCHANGED):
        yield Exchange(Collective.ALL_REDUCE, model.hidden)
    for _ in range(kind.attention.tp_norms):
        yield Exchange(Collective.ALL_REDUCE, 1, Unit.NORM)


def _no_such_dim(name: str, dim: Dim, known: tuple[Dim, ...]) -> InputError:
    return InputError(
        f"dims: {name} cannot be cut along '{dim.value}', only "
        f"{', '.join(repr(d.value) for d in known)}. Fix: choose one of these, or leave it out."
    )
