from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autoscaler.moves import (
    Blocked,
    Goal,
    Node,
    Position,
    Round,
    Side,
    Step,
    StepKind,
    Unit,
    carried,
    moves,
    next_round,
    swapped,
    way_back,
)

TP1 = Unit(devices=1, capacity=100.0)
TP2 = Unit(devices=2, capacity=220.0)


def one_node(*, free: int, old: int) -> Position:
    return Position(nodes=(Node(free=free, old=old),))


def words(steps: tuple[Step, ...] | Blocked) -> list[str]:
    assert not isinstance(steps, Blocked), steps.why
    return [f"{step.kind} {step.side} {step.replicas}" for step in steps]


def test_with_room_the_new_replica_comes_first() -> None:
    goal = Goal(old=TP1, new=TP2, replicas=1, floor=100.0)
    assert words(moves(one_node(free=2, old=1), goal)) == [
        "start new 1",
        "await new 1",
        "canary new 1",
        "drain old 1",
        "stop old 1",
    ]


def test_without_room_old_ones_make_it_as_far_as_the_floor_can_spare_them() -> None:
    goal = Goal(old=TP1, new=TP2, replicas=2, floor=200.0)
    assert words(moves(one_node(free=0, old=4), goal)) == [
        "drain old 2",
        "stop old 2",
        "start new 1",
        "await new 1",
        "canary new 1",
        "drain old 2",
        "stop old 2",
        "start new 1",
        "await new 1",
        "canary new 1",
    ]


def test_one_new_replica_is_tried_before_the_others_are_started() -> None:
    goal = Goal(old=TP1, new=TP2, replicas=3, floor=100.0)
    starts = [s for s in words(moves(one_node(free=6, old=1), goal)) if s.startswith("start")]
    assert starts == ["start new 1", "start new 2"]


def test_the_only_replica_is_not_given_up_for_one_that_has_no_room() -> None:
    goal = Goal(old=TP1, new=TP2, replicas=1, floor=100.0)
    refused = moves(one_node(free=1, old=1), goal)
    assert isinstance(refused, Blocked)
    assert "no room beside the 1 old replica" in refused.why


def test_a_gap_is_taken_where_it_is_allowed() -> None:
    goal = Goal(old=TP1, new=TP2, replicas=1, floor=100.0, below_floor=True)
    assert words(moves(one_node(free=1, old=1), goal))[:3] == [
        "drain old 1",
        "stop old 1",
        "start new 1",
    ]


def test_a_layout_that_fits_no_node_is_refused() -> None:
    goal = Goal(old=TP1, new=Unit(devices=8, capacity=900.0), replicas=1, floor=100.0)
    spread = Position(nodes=(Node(free=2, old=2), Node(free=2, old=2)))
    refused = moves(spread, goal)
    assert isinstance(refused, Blocked)
    assert "no node has 8 device(s)" in refused.why


def test_too_few_replicas_of_the_new_layout_are_refused_before_anything_moves() -> None:
    goal = Goal(old=TP2, new=TP1, replicas=1, floor=200.0)
    refused = moves(one_node(free=4, old=1), goal)
    assert isinstance(refused, Blocked)
    assert "200 must be carried" in refused.why


def test_where_nodes_may_come_they_are_asked_for_before_old_replicas_make_room() -> None:
    goal = Goal(old=TP1, new=TP2, replicas=3, floor=400.0)
    begun = replace(one_node(free=0, old=4), coming=3)
    assert words(moves(begun, goal))[:8] == [
        "ask new 1",
        "start new 1",
        "await new 1",
        "canary new 1",
        "ask new 2",
        "start new 2",
        "await new 2",
        "canary new 2",
    ]


def test_even_a_gap_that_is_allowed_comes_after_asking() -> None:
    goal = Goal(old=TP1, new=TP2, replicas=1, floor=100.0, below_floor=True)
    begun = replace(one_node(free=1, old=1), coming=1)
    assert words(moves(begun, goal))[0] == "ask new 1"
    assert words(moves(replace(begun, coming=0), goal))[0] == "drain old 1"


def test_where_there_is_room_nothing_is_asked_for() -> None:
    goal = Goal(old=TP1, new=TP2, replicas=1, floor=100.0)
    begun = replace(one_node(free=2, old=1), coming=1)
    assert words(moves(begun, goal)) == words(moves(replace(begun, coming=0), goal))


NODES = st.builds(Node, free=st.integers(0, 8), old=st.integers(0, 4))
UNITS = st.builds(Unit, devices=st.integers(1, 4), capacity=st.sampled_from([50.0, 100.0, 220.0]))


@st.composite
def beginnings(draw: st.DrawFn) -> tuple[Position, Goal]:
    """A pool that carries its floor, on nodes of any kind."""
    nodes = tuple(draw(st.lists(NODES, min_size=1, max_size=4)))
    position = Position(nodes=nodes, coming=draw(st.integers(0, 6)))
    old = draw(UNITS)
    floor = draw(st.integers(0, position.old)) * old.capacity
    goal = Goal(old=old, new=draw(UNITS), replicas=draw(st.integers(1, 6)), floor=floor)
    return position, goal


class Cluster:
    """Nodes on which Serve chooses the victims, as badly as `draw` likes.

    Of the nodes that are asked for as many come as it likes.
    """

    def __init__(self, position: Position, goal: Goal, draw: st.DataObject) -> None:
        self.position, self.goal, self._draw = position, goal, draw
        self.devices = [
            node.free + node.old * goal.old.devices + node.new * goal.new.devices
            for node in position.nodes
        ]

    def carry_out(self, steps: Round) -> None:
        if steps[0].kind is StepKind.ASK:
            self._grow(steps[0].replicas)
            return
        for _ in range(steps[0].replicas):
            starts = steps[0].kind is StepKind.START
            new = steps[0].side is Side.NEW
            unit = self.goal.new if new else self.goal.old
            nodes = list(self.position.nodes)
            able = [
                i
                for i, node in enumerate(nodes)
                if (node.free >= unit.devices if starts else (node.new if new else node.old))
            ]
            index = self._draw.draw(st.sampled_from(able))
            change = 1 if starts else -1
            node = nodes[index]
            counts = {"new": node.new + change} if new else {"old": node.old + change}
            nodes[index] = replace(node, free=node.free - change * unit.devices, **counts)
            self.position = replace(self.position, nodes=tuple(nodes))
        assert all(node.free >= 0 for node in self.position.nodes)
        for node, devices in zip(self.position.nodes, self.devices, strict=True):
            held = node.old * self.goal.old.devices + node.new * self.goal.new.devices
            assert node.free + held == devices

    def _grow(self, asked: int) -> None:
        assert 0 < asked <= self.position.coming
        came = self._draw.draw(st.integers(0, asked))
        self.devices += [self.goal.new.devices] * came
        self.position = Position(
            nodes=(*self.position.nodes, *[Node(free=self.goal.new.devices)] * came),
            coming=self.position.coming - asked if came == asked else 0,
        )


@given(beginnings(), st.data())
def test_whatever_serve_stops_the_floor_holds_and_devices_suffice(
    begun: tuple[Position, Goal], data: st.DataObject
) -> None:
    position, goal = begun
    cluster = Cluster(position, goal, data)
    for _ in range(50):
        steps = next_round(cluster.position, goal)
        if isinstance(steps, Blocked) or not steps:
            break
        cluster.carry_out(steps)
        assert carried(cluster.position, goal) >= goal.floor - 1e-6
    else:
        raise AssertionError("it does not end")
    if not isinstance(steps, Blocked):
        assert (cluster.position.new, cluster.position.old) == (goal.replicas, 0)


@given(beginnings(), st.data())
def test_from_every_point_the_way_back_restores_the_old_layout(
    begun: tuple[Position, Goal], data: st.DataObject
) -> None:
    position, goal = begun
    cluster = Cluster(position, goal, data)
    for _ in range(data.draw(st.integers(0, 12))):
        steps = next_round(cluster.position, goal)
        if isinstance(steps, Blocked) or not steps:
            break
        cluster.carry_out(steps)
    before = carried(cluster.position, goal)
    for _ in range(50):
        there, back = way_back(cluster.position, goal, replicas=position.old)
        steps = next_round(there, back)
        assert not isinstance(steps, Blocked), steps.why
        if not steps:
            break
        cluster.carry_out(swapped(steps))
        if goal.old == goal.new:
            assert carried(cluster.position, goal) >= min(before, goal.floor) - 1e-6
    assert (cluster.position.old, cluster.position.new) == (position.old, 0)


@given(beginnings())
def test_what_is_shown_beforehand_holds_on_nodes_that_free_up_best(
    begun: tuple[Position, Goal],
) -> None:
    position, goal = begun
    steps = moves(position, goal)
    if isinstance(steps, Blocked):
        return
    counts = {Side.OLD: position.old, Side.NEW: 0}
    for step in steps:
        counts[step.side] += {StepKind.CANARY: 1, StepKind.STOP: -1}.get(
            step.kind, 0
        ) * step.replicas
    assert counts == {Side.OLD: 0, Side.NEW: goal.replicas}
