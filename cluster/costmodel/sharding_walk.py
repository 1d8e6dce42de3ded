"""What can one operator do from each state? The transitions of per-operator sharding.

    operator          needs     gives          operator                     needs    gives
    COLUMN  `1`       FULL      SHARDED        REPLICATED `-` of FULL       FULL     FULL
    ROW     `0`       SHARDED   PARTIAL        REPLICATED `-` of TOKENS     TOKENS   TOKENS

Whole weights on a share of the tokens do that share of the work. The core of attention is `1`
heads cut, or `-` all heads and the whole KV cache on every rank. Latents of multi-head latent
attention and what an indexer computes are always gathered, being normed over their width and cached
whole; its up-projection of keys and values is absorbed per head: cut by heads or not at all.
Experts cut over the ranks of tp have the choices of any operator. Spread over ranks or shared by
data-parallel ones, the grid (moe_tp, moe_ep) is their choice, and they keep the default dims.

Invariant: from a given state, a dim leads to exactly one state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cluster.costmodel.sharding_states import (
    Choice,
    Collective,
    Cut,
    Env,
    Exchange,
    Experts,
    State,
    Unit,
    convert,
    joined,
)
from cluster.model import operators as op
from cluster.model.layout import Dim
from cluster.model.model_spec import LayerKind, ModelSpec, Operator

ATTENTION_CORE = "attention_core"


@dataclass(frozen=True)
class Slot:
    """An operator (or core) of layer kind `kind` that a dim is chosen for.

    `row` is its position in `chain.lower_operators`, -1 for a core.
    """

    kind: int
    name: str
    row: int
    default: Dim
    dims: tuple[Dim, ...]


_GIVES = {
    Dim.COLUMN: (State.SHARDED, Cut.COLUMN),
    Dim.ROW: (State.PARTIAL, Cut.ROW),
    Dim.REPLICATED: (State.FULL, Cut.WHOLE),
}
_CLOSES = frozenset({op.ATTENTION_OUT, op.LINEAR_OUT, op.FFN_DOWN, op.SHARED_DOWN})
_FROM_X = frozenset({op.QKV, op.LINEAR_IN, op.LATENT_DOWN, op.INDEX_K, op.FFN_UP})
_OF_EXPERTS = frozenset({op.ROUTER, op.SHARED_UP, op.EXPERT_UP})
KNOWN = _FROM_X | _CLOSES | _OF_EXPERTS | frozenset({op.Q_UP, op.KV_UP, op.INDEX_Q, op.EXPERT_DOWN})
"""The operators whose place in a layer is known."""


@dataclass(frozen=True)
class Walk:
    """The transitions of one slot of one layer kind, for residual streams in state `residual`."""

    model: ModelSpec
    kind: LayerKind
    slot: Slot
    experts: Experts
    residual: State

    def choices(self, env: Env) -> Iterator[Choice]:
        """The ways on from `env`."""
        name = self.slot.name
        if name == ATTENTION_CORE:
            yield from self._core(env)
            return
        if name in (op.EXPERT_UP, op.EXPERT_DOWN) and self.experts is not Experts.CUT:
            yield self._closed(self._as_the_grid_says(env))
            return
        for dim in self.slot.dims:
            yield self._closed(self._through(env, dim))

    @property
    def _operator(self) -> Operator:
        return self._named(self.slot.name)

    def _named(self, name: str) -> Operator:
        return next(o for o in self.kind.operators if o.name == name)

    def _through(self, env: Env, dim: Dim) -> Choice:
        name, operator = self.slot.name, self._operator
        uncompressed = operator.rows == self.model.hidden and name in (op.Q_UP, op.INDEX_Q)
        if name in _FROM_X or name in _OF_EXPERTS or uncompressed:
            step = self._from_x(env, dim)
        elif name in (op.Q_UP, op.INDEX_Q, op.KV_UP):
            step = self._from_state(env, State.FULL, dim, features=(operator.rows, operator.rows))
        elif name in (op.FFN_DOWN, op.EXPERT_DOWN):
            step = self._from_state(env, _held(env.first), dim, features=self._between())
        elif name == op.SHARED_DOWN:
            step = self._from_state(env, _held(env.second), dim, features=self._between())
        else:  # attention_out, linear_out
            step = self._from_state(
                env, _held(env.first), dim, features=(operator.rows, operator.rows)
            )
        side = {Dim.COLUMN: operator.cols, Dim.ROW: operator.rows, Dim.REPLICATED: 0}[dim]
        return replace(step, divides=0 if dim is self.slot.default else side)

    def _between(self) -> tuple[int, int]:
        """Features between an up- and a down-projection: before and after the activation."""
        ups = {op.FFN_DOWN: op.FFN_UP, op.SHARED_DOWN: op.SHARED_UP, op.EXPERT_DOWN: op.EXPERT_UP}
        return self._named(ups[self.slot.name]).cols, self._operator.rows

    def _from_x(self, env: Env, dim: Dim) -> Choice:
        """From the block's input, which stays gathered for the operators after this one."""
        tokens = dim is Dim.REPLICATED and self.slot.name != op.EXPERT_UP
        if env.x is State.TOKENS and tokens:
            return self._put(env, dim, State.TOKENS, Cut.TOKENS, ())
        gathered = convert(env.x, State.FULL, self.model.hidden)
        state, cut = _GIVES[dim]
        return self._put(replace(env, x=State.FULL), dim, state, cut, gathered)

    def _from_state(self, env: Env, state: State, dim: Dim, *, features: tuple[int, int]) -> Choice:
        """From a branch. `features`: of a sum that is owed, and of anything else."""
        if state is State.TOKENS and dim is Dim.REPLICATED:
            return self._put(env, dim, State.TOKENS, Cut.TOKENS, ())
        needs = State.SHARDED if dim is Dim.ROW else State.FULL
        unit = Unit.VISIT if self.slot.name == op.EXPERT_DOWN else Unit.TOKEN
        moved = convert(state, needs, features[state is not State.PARTIAL], unit)
        gives, cut = _GIVES[dim]
        return self._put(env, dim, gives, cut, moved)

    def _put(
        self, env: Env, dim: Dim, state: State, cut: Cut, exchanges: tuple[Exchange, ...]
    ) -> Choice:
        """Where the operator's output goes: to a branch, or gathered because all ranks need it."""
        name = self.slot.name
        if name in (op.LATENT_DOWN, op.INDEX_K, op.INDEX_Q, op.ROUTER):
            whole = convert(state, State.FULL, self._operator.cols)
            return Choice(dim, env, cut, exchanges + whole)
        if name in (op.KV_UP, op.SHARED_UP, op.SHARED_DOWN):
            return Choice(dim, replace(env, second=state), cut, exchanges)
        return Choice(dim, replace(env, first=state), cut, exchanges)

    def _core(self, env: Env) -> Iterator[Choice]:
        producers = [o for o in self.kind.operators if o.name in (op.QKV, op.LINEAR_IN, op.Q_UP)]
        pairs = [(_held(env.first), producers[0].cols)]
        if env.second is not None:
            pairs.append((env.second, self._named(op.KV_UP).cols))
        for dim, state, cut in (
            (Dim.COLUMN, State.SHARDED, Cut.COLUMN),
            (Dim.REPLICATED, State.FULL, Cut.WHOLE),
        ):
            moved = tuple(e for held, cols in pairs for e in convert(held, state, cols))
            if dim is Dim.COLUMN and env.first is not State.FULL:
                # A norm over all heads is reduced unless it saw all of them.
                norm = Exchange(Collective.ALL_REDUCE, 1, Unit.NORM)
                moved += (norm,) * self.kind.attention.tp_norms
            yield Choice(dim, Env(env.x, state), cut, moved)

    def _as_the_grid_says(self, env: Env) -> Choice:
        """Experts whose dims are no choice: spread over tp ranks, or exchanged with others."""
        dim = self.slot.default
        cut = _GIVES[dim][1]
        if self.experts is Experts.EXCHANGED:
            return Choice(dim, replace(env, first=None), cut, ())
        gathered = convert(env.x, State.FULL, self.model.hidden)
        return Choice(dim, Env(State.FULL, State.PARTIAL, env.second), cut, gathered)

    def _closed(self, step: Choice) -> Choice:
        """After the last operator of a block, its output joins the residual stream."""
        names = [o.name for o in self.kind.operators if o.rows and o.cols]
        name = self.slot.name
        last = name == op.EXPERT_DOWN and op.SHARED_DOWN not in names
        if name not in _CLOSES and not last:
            return step
        state = joined(step.env.first, step.env.second)
        if state is None:
            moved: tuple[Exchange, ...] = ()
        elif self.experts is Experts.EXCHANGED and name == op.SHARED_DOWN:
            # The sum that shared experts owe is taken with what the exchange brings back.
            settled = State.FULL if state is State.PARTIAL else state
            moved = convert(settled, self.residual, self.model.hidden)
        else:
            moved = convert(state, self.residual, self.model.hidden)
        return replace(step, env=Env(self.residual), exchanges=step.exchanges + moved)


def _held(state: State | None) -> State:
    assert state is not None, "a down-projection follows its up-projection"
    return state
