"""First replicas without room: refused, or waited for where an autoscaler brings nodes."""

from __future__ import annotations

import pytest

from cluster.errors import InputError
from cluster.ray_backend.bundles import PlacementBundles
from cluster.ray_backend.capacity import PoolNeed
from cluster.ray_backend.node_supply import NO_SUPPLY, NodeSupply
from serving.first_room import FirstRoom

NEED = PoolNeed(
    pool="main",
    replicas=1,
    placement=PlacementBundles(bundles=({"GPU": 1.0},) * 2, strategy="STRICT_PACK"),
)
LACK = "pool 'main': replica 1 of 1 needs 2 GPU(s) on one node"


def looks(*told: NodeSupply) -> FirstRoom:
    """An autoscaler that is heard so, look by look; the last for ever."""
    left = list(told)
    return FirstRoom(lambda: left.pop(0) if len(left) > 1 else left[0])


def managed(look: int, *, refused: str = "", doing: str = "") -> NodeSupply:
    return NodeSupply(manages=True, looked=look, refused=frozenset(refused.split()), doing=doing)


def test_room_that_is_there_is_not_waited_for() -> None:
    room = looks(managed(1))
    room.check([NEED], [{"GPU": 2.0}])
    assert room.waiting() == ""


def test_without_an_autoscaler_no_room_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="needs 2 GPU"):
        looks(NO_SUPPLY).check([NEED], [{"GPU": 1.0}])


def test_what_the_autoscaler_does_is_told() -> None:
    room = looks(managed(1), managed(2), managed(3, doing="1 x gpus on the way"))
    room.check([NEED], [])
    first = room.waiting()
    assert first.startswith(LACK) and "Fix" not in first
    assert first.endswith("Ray's autoscaler: nothing on the way yet")
    assert room.waiting().endswith("Ray's autoscaler: 1 x gpus on the way")


def test_what_it_refuses_twice_is_refused_and_the_fix_is_named() -> None:
    room = looks(managed(1), managed(2, refused="a"), managed(3, refused="a"))
    room.check([NEED], [])
    assert "no node" not in room.waiting()
    assert "no node for 1 placement group(s) that wait, nor may add one: raise" in room.waiting()
