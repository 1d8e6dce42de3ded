"""In which order does a pool get from one layout to another, and is it never too small on the way?

    next_round(position, goal) -> steps, nothing (arrived), or Blocked

A round is (start, await, canary) of new replicas, (drain, stop) of old ones, or (ask) for nodes.
After each the cluster is looked at again, since what a stop frees, and on which node, is Serve's
choice, and what is asked for may not come. Surge first: as long as a node has room for a new
replica, one is started, alone until the first has answered its canary. Where none has, nodes are
asked for while some may come. Only where none does do old ones make room, and only those that the
floor can spare. `moves` unrolls the rounds with the best choice of nodes, all of which come: what
`replan --dry-run` shows.

Invariants: what answers carries at least the floor after every step (or what it carried before, if
that was less), unless `below_floor` allows one gap; no more devices are used than there are; it
ends with `goal.replicas` new ones and no old one, or Blocked before a step that cannot be kept.
An ask lowers `coming` by at least what was asked for, whatever came, so asking ends.
The way back is the same function with the sides swapped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

_ROUNDING = 1e-9


class StepKind(StrEnum):
    """START: ask for replicas. AWAIT: until they report. CANARY: until each has answered.

    DRAIN: they leave the routing table. STOP: until they have finished and are gone. ASK: for nodes
    with room for them, until those are up or it is clear that they do not come.
    """

    START = "start"
    AWAIT = "await"
    CANARY = "canary"
    DRAIN = "drain"
    STOP = "stop"
    ASK = "ask"


class Side(StrEnum):
    """Which layout's replicas a step is about."""

    OLD = "old"
    NEW = "new"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step: `replicas` of `side`, of both kinds of round how many more, or fewer."""

    kind: StepKind
    side: Side
    replicas: int


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One replica of a layout: the devices it holds and what it carries, predicted tokens/s."""

    devices: int
    capacity: float


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node: devices nobody holds, and replicas of both layouts on it.

    Where a replica spans nodes, all of them are one `Node`.
    """

    free: int
    old: int = 0
    new: int = 0


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a move has come to. `coming`: new replicas for which nodes may yet be asked for."""

    nodes: tuple[Node, ...]
    coming: int = 0

    @property
    def old(self) -> int:
        """Replicas of the old layout."""
        return sum(node.old for node in self.nodes)

    @property
    def new(self) -> int:
        """Replicas of the new layout that have answered."""
        return sum(node.new for node in self.nodes)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """`replicas` of the new layout and none of the old.

    `floor`: predicted tokens/s that must be carried throughout. `below_floor`: where there is no
    other way, the gateways' line holds requests through a gap.
    """

    old: Unit
    new: Unit
    replicas: int
    floor: float
    below_floor: bool = False


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """No step is possible, in words."""

    why: str


Round = tuple[Step, ...]


def next_round(position: Position, goal: Goal) -> Round | Blocked:
    """What comes next; empty when the move has arrived."""
    if _falls_short(goal):
        return Blocked(
            why=f"{goal.replicas} replica(s) of the new layout carry "
            f"{goal.replicas * goal.new.capacity:.0f} tokens/s, {goal.floor:.0f} must be carried"
        )
    if position.new < goal.replicas:
        room = sum(node.free // goal.new.devices for node in position.nodes)
        wanted = 1 if position.new == 0 else goal.replicas - position.new
        if room:
            return _start(min(room, wanted))
        if position.coming > 0:
            return _ask(min(position.coming, wanted))
        return _make_room(position, goal)
    return _stop(position.old) if position.old else ()


def moves(position: Position, goal: Goal) -> tuple[Step, ...] | Blocked:
    """All steps, if every stop frees the node where it helps most."""
    found: list[Step] = []
    while steps := next_round(position, goal):
        if isinstance(steps, Blocked):
            return steps
        found += steps
        position = after(position, steps, goal)
    return tuple(found)


def way_back(position: Position, goal: Goal, *, replicas: int) -> tuple[Position, Goal]:
    """The move that restores `replicas` of the old layout, as position and goal of its own.

    What is left of the new layout answers until the old one is back; the floor cannot stop it.
    """
    nodes = tuple(Node(free=node.free, old=node.new, new=node.old) for node in position.nodes)
    back = Goal(old=goal.new, new=goal.old, replicas=replicas, floor=goal.floor, below_floor=True)
    return Position(nodes=nodes), back


def swapped(steps: Round) -> Round:
    """Steps of a way back in the words of the way there."""
    other = {Side.OLD: Side.NEW, Side.NEW: Side.OLD}
    return tuple(replace(step, side=other[step.side]) for step in steps)


def carried(position: Position, goal: Goal) -> float:
    """What the replicas that answer carry, predicted tokens/s."""
    return position.old * goal.old.capacity + position.new * goal.new.capacity


def after(position: Position, steps: Round, goal: Goal) -> Position:
    """Where a whole round leads, on the nodes where it helps most."""
    nodes = list(position.nodes)
    first = steps[0]
    if first.kind is StepKind.ASK:
        nodes += [Node(free=goal.new.devices)] * first.replicas
        return Position(nodes=tuple(nodes), coming=position.coming - first.replicas)
    for _ in range(first.replicas):
        if first.kind is StepKind.START:
            index = min(_with_room(nodes, goal), key=lambda i: nodes[i].free)
            node = nodes[index]
            nodes[index] = replace(node, free=node.free - goal.new.devices, new=node.new + 1)
        else:
            index = min(_with_old(nodes), key=lambda i: _missing(nodes[i], goal))
            node = nodes[index]
            nodes[index] = replace(node, free=node.free + goal.old.devices, old=node.old - 1)
    return replace(position, nodes=tuple(nodes))


def _falls_short(goal: Goal) -> bool:
    carried_s = goal.replicas * goal.new.capacity
    return not goal.below_floor and carried_s < goal.floor * (1.0 - _ROUNDING)


def _make_room(position: Position, goal: Goal) -> Round | Blocked:
    """Old replicas go, so that a new one finds room: as few as can be, and none the floor needs."""
    needed = min(
        (
            math.ceil((goal.new.devices - node.free) / goal.old.devices)
            for node in position.nodes
            if node.free + node.old * goal.old.devices >= goal.new.devices
        ),
        default=None,
    )
    if needed is None:
        return Blocked(
            why=f"no node has {goal.new.devices} device(s) for a replica of the new layout, even "
            "without the old ones"
        )
    spare = math.floor((carried(position, goal) - goal.floor) / goal.old.capacity + _ROUNDING)
    if needed > spare and not goal.below_floor:
        return Blocked(
            why=f"there is no room beside the {position.old} old replica(s), and of them "
            f"{max(0, min(spare, position.old))} can go before the new one answers, {needed} would "
            "have to"
        )
    return _stop(needed)


def _start(replicas: int) -> Round:
    kinds = (StepKind.START, StepKind.AWAIT, StepKind.CANARY)
    return tuple(Step(kind=kind, side=Side.NEW, replicas=replicas) for kind in kinds)


def _ask(replicas: int) -> Round:
    return (Step(kind=StepKind.ASK, side=Side.NEW, replicas=replicas),)


def _stop(replicas: int) -> Round:
    kinds = (StepKind.DRAIN, StepKind.STOP)
    return tuple(Step(kind=kind, side=Side.OLD, replicas=replicas) for kind in kinds)


def _with_room(nodes: list[Node], goal: Goal) -> Iterator[int]:
    return (i for i, node in enumerate(nodes) if node.free >= goal.new.devices)


def _with_old(nodes: list[Node]) -> Iterator[int]:
    return (i for i, node in enumerate(nodes) if node.old)


def _missing(node: Node, goal: Goal) -> float:
    """Devices a new replica lacks on a node; infinite where stopping old ones cannot help."""
    if node.free + node.old * goal.old.devices < goal.new.devices:
        return math.inf
    return max(0, goal.new.devices - node.free)
