"""How is an activation held over the ranks that share an operator, and what moves it on?

Four states over the n tensor-parallel ranks (GSPMD's annotations, arXiv:2105.04663, in one
dimension):

    FULL    whole on every rank          SHARDED  features cut
    TOKENS  tokens cut                   PARTIAL  whole, but a sum over ranks is still owed

    from    to FULL      to SHARDED       to TOKENS        to PARTIAL
    FULL    -            - (slice)        - (slice)        -
    SHARDED all-gather   -                all-gather       -
    TOKENS  all-gather   all-gather       -                -
    PARTIAL all-reduce   reduce-scatter   reduce-scatter   -

Invariant: a conversion is at most one collective.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from cluster.model.layout import Dim


class State(IntEnum):
    """How an activation is held over the ranks that share an operator."""

    FULL = 0
    SHARDED = 1
    PARTIAL = 2
    TOKENS = 3


class Cut(IntEnum):
    """How an operator runs on one rank."""

    COLUMN = 0
    ROW = 1
    WHOLE = 2
    TOKENS = 3  # whole weights, a share of the tokens


class Experts(IntEnum):
    """What a layout does with routed experts, which decides the choices they have."""

    CUT = 0  # over the tp ranks of the only data-parallel rank
    SPREAD = 1  # over the same ranks, some of them whole
    EXCHANGED = 2  # with other data-parallel ranks


class Collective(StrEnum):
    """What moves an activation from state to state; a part of a step."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"


class Unit(StrEnum):
    """What `Exchange.features` are counted per."""

    TOKEN = "token"
    VISIT = "visit"  # a (token, expert) pair of the fullest rank
    NORM = "norm"  # a token's fp32 sum of squares


@dataclass(frozen=True, order=True)
class Exchange:
    """One collective on tensors of `features` elements per unit."""

    collective: Collective
    features: int
    unit: Unit = Unit.TOKEN


@dataclass(frozen=True)
class Env:
    """States in the middle of a block: its input, and one or two branches that start from it."""

    x: State
    first: State | None = None
    second: State | None = None


@dataclass(frozen=True)
class Choice:
    """One way through a slot: the dim, where it leads, and what it does on the way.

    tp must divide `divides` (0: anything does).
    """

    dim: Dim
    env: Env
    cut: Cut
    exchanges: tuple[Exchange, ...]
    divides: int = 0


def convert(
    state: State, to: State, features: int, unit: Unit = Unit.TOKEN
) -> tuple[Exchange, ...]:
    """The collective from one state to another, none where it costs nothing (see the table)."""
    if state in (to, State.FULL) or to is State.PARTIAL:
        return ()
    if state is State.PARTIAL:
        reduces = Collective.ALL_REDUCE if to is State.FULL else Collective.REDUCE_SCATTER
        return (Exchange(reduces, features, unit),)
    return (Exchange(Collective.ALL_GATHER, features, unit),)


def joined(first: State | None, second: State | None) -> State | None:
    """The state of a sum of two branches: what is whole or cut can be added to a partial sum."""
    if first is None or second is None or first is second:
        return second if first is None else first
    if State.FULL in (first, second):
        return second if first is State.FULL else first
    return State.PARTIAL
