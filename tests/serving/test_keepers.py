"""The controller's side of the keepers, over a cluster that is made up."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field, replace

import pytest

from cluster.ray_backend.node_supply import NO_SUPPLY, NodeSupply
from cluster.ray_backend.unmet import NodeRoom
from serving.keeper.account import NodeAccount, ReplicaUse, Roll, Swept
from serving.keeper.keepers import Keepers, KeeperSpec
from serving.keeper.ray_cluster import Rank, ReplicaGroup

ROOM = NodeRoom(name="10.0.0.1", free={"GPU": 1.0}, total={"GPU": 8.0})
SPEC = KeeperSpec(application="a", app="shardwise", namespace="n")
SWEPT = Swept(pid=7, name="core", replica_id="z", host_bytes=1.0, device_bytes=2.0, age_s=3.0)


@dataclass
class FakeKeeper:
    account: NodeAccount | Exception = field(default_factory=NodeAccount)
    rolls: list[Roll] = field(default_factory=list)
    held: asyncio.Event | None = None

    @property
    def look(self):
        return self

    async def remote(self, roll: Roll) -> NodeAccount:
        self.rolls.append(roll)
        if self.held is not None:
            await self.held.wait()
        if isinstance(self.account, Exception):
            raise self.account
        return self.account


@dataclass
class FakeCluster:
    nodes: dict[str, NodeRoom] = field(default_factory=lambda: {"n1": ROOM})
    placed: list[ReplicaGroup] = field(default_factory=list)
    actors: list[Rank] = field(default_factory=list)
    keepers: dict[str, FakeKeeper] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    dropped: list[FakeKeeper] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    told: NodeSupply = NO_SUPPLY

    def supply(self):
        self.told = replace(self.told, looked=self.told.looked + 1)
        return self.told

    def rooms(self):
        return self.nodes

    def groups(self):
        return [group for group in self.placed if group.group_id not in self.removed]

    def ranks(self, groups):
        return self.actors

    def remove_group(self, group_id):
        self.removed.append(group_id)

    def keeper(self, node_id):
        return self.keepers.setdefault(node_id, FakeKeeper())

    def drop_keeper(self, keeper):
        self.dropped.append(keeper)

    def leave(self, node_id):
        self.left.append(node_id)


def group(name, *, waiting=False, gpus=1.0, count=1):
    return ReplicaGroup(
        group_id=f"g-{name}",
        pool="main",
        replica_id=name,
        waiting=waiting,
        strategy="STRICT_PACK",
        bundles=({"GPU": gpus},) * count,
    )


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def made(cluster, *, living=frozenset({"a"}), clock=None):
    return Keepers(SPEC, cluster, living=lambda: living, clock=clock or Clock())


async def test_a_keeper_is_told_its_nodes_actors_and_who_lives() -> None:
    cluster = FakeCluster(
        nodes={"n1": ROOM, "n2": ROOM},
        actors=[
            Rank(replica_id="a", node_id="n1", pid=1),
            Rank(replica_id="a", node_id="n2", pid=2),
            Rank(replica_id="later", node_id="n2", pid=3),
            Rank(replica_id="starts", node_id="", pid=0),
        ],
    )
    await made(cluster).look()
    (roll,) = cluster.keepers["n2"].rolls
    assert roll.roots == {"a": (2,), "later": (3,)}
    assert roll.living == {"a", "later", "starts"}, "in Serve's books, or in Ray's"


async def test_a_replica_over_two_nodes_is_summed_and_unknown_without_one() -> None:
    use = ReplicaUse(host_bytes=1.0, device_bytes=2.0)
    ranks = [Rank(replica_id="a", node_id=node, pid=1) for node in ("n1", "n2")]
    cluster = FakeCluster(nodes={"n1": ROOM, "n2": replace(ROOM, name="10.0.0.2")}, actors=ranks)
    cluster.keepers["n1"] = FakeKeeper(NodeAccount(replicas={"a": use}))
    cluster.keepers["n2"] = FakeKeeper(
        NodeAccount(replicas={"a": replace(use, device_fault="GPU 3: lost")})
    )
    keepers = made(cluster)
    await keepers.look()
    assert keepers.kept.uses["a"] == ReplicaUse(
        host_bytes=2.0, device_bytes=4.0, device_fault="GPU 3: lost"
    )
    cluster.keepers["n2"].account = RuntimeError("died")
    await keepers.look()
    assert math.isnan(keepers.kept.uses["a"].host_bytes)
    assert "died" in keepers.kept.trouble["10.0.0.2"]


async def test_a_keeper_that_hangs_holds_nobody_up_and_is_not_asked_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serving.keeper.keepers.ANSWER_S", 0.05)
    use = ReplicaUse(host_bytes=1.0)
    cluster = FakeCluster(
        nodes={"n1": ROOM, "n2": replace(ROOM, name="10.0.0.2")},
        actors=[Rank(replica_id="a", node_id="n1", pid=1)],
    )
    cluster.keepers["n1"] = FakeKeeper(NodeAccount(replicas={"a": use}))
    cluster.keepers["n2"] = hangs = FakeKeeper(held=asyncio.Event())
    keepers = made(cluster)
    await keepers.look()
    await keepers.look()
    assert keepers.kept.uses["a"].host_bytes == 1.0
    assert "has not answered" in keepers.kept.trouble["10.0.0.2"]
    assert len(hangs.rolls) == 1
    hangs.held.set()
    await keepers.look()
    assert keepers.kept.trouble == {}


async def test_the_keeper_of_a_node_that_is_gone_is_ended() -> None:
    cluster = FakeCluster(nodes={"n1": ROOM, "n2": ROOM})
    keepers = made(cluster)
    await keepers.look()
    del cluster.nodes["n2"]
    await keepers.look()
    assert cluster.dropped == [cluster.keepers["n2"]]


async def test_a_node_that_holds_no_replica_for_long_is_left_until_it_holds_one() -> None:
    head = replace(ROOM, total={"node:__internal_head__": 1.0})
    busy, idle = (Rank(replica_id="a", node_id=node, pid=1) for node in ("busy", "idle"))
    cluster = FakeCluster(nodes={"busy": ROOM, "idle": ROOM, "head": head}, actors=[busy])
    clock = Clock()
    keepers = Keepers(
        replace(SPEC, leave_s=60.0), cluster, living=lambda: frozenset({"a"}), clock=clock
    )
    for clock.now_s in (0.0, 59.0, 60.0, 61.0):
        await keepers.look()
    assert cluster.left == ["idle"]
    looks = {node: len(keeper.rolls) for node, keeper in cluster.keepers.items()}
    assert looks == {"busy": 4, "idle": 2, "head": 4}
    cluster.actors = [busy, idle]
    await keepers.look()
    assert len(cluster.keepers["idle"].rolls) == 3


async def test_nodes_are_never_left_unless_it_is_asked_for() -> None:
    clock, cluster = Clock(), FakeCluster()
    keepers = made(cluster, clock=clock)
    for clock.now_s in (0.0, 1e6):
        await keepers.look()
    assert cluster.left == []


async def test_what_is_swept_is_counted_and_kept() -> None:
    cluster = FakeCluster(keepers={"n1": FakeKeeper(NodeAccount(swept=(SWEPT,)))})
    keepers = made(cluster)
    await keepers.look()
    assert keepers.kept.counts["processes"] == 1
    assert keepers.kept.in_public()["swept"][0]["pid"] == 7


async def test_the_group_of_a_replica_that_is_gone_is_removed_after_the_grace_period() -> None:
    clock, cluster = Clock(), FakeCluster(placed=[group("a"), group("gone")])
    keepers = made(cluster, clock=clock)
    removed = []
    for clock.now_s in (0.0, 29.0, 30.0, 60.0):
        await keepers.look()
        removed.append(list(cluster.removed))
    assert removed == [[], [], ["g-gone"], ["g-gone"]]
    assert keepers.kept.counts["placement_groups"] == 1


@pytest.mark.parametrize("living", [None, frozenset({"a", "gone"})])
async def test_a_group_stays_while_nobody_knows_or_its_replica_lives(living) -> None:
    clock, cluster = Clock(), FakeCluster(placed=[group("gone")])
    keepers = made(cluster, clock=clock, living=living)
    for clock.now_s in (0.0, 100.0):
        await keepers.look()
    assert cluster.removed == []


async def test_a_replica_that_is_not_placed_in_time_is_explained() -> None:
    clock = Clock()
    cluster = FakeCluster(placed=[group("a", waiting=True, gpus=4.0)])
    keepers = made(cluster, clock=clock)
    told = []
    for clock.now_s in (0.0, 59.0, 60.0):
        await keepers.look()
        told.append(dict(keepers.kept.unmet))
    assert told == [
        {},
        {},
        {"main": "bundle {'GPU': 4} of pool main fits no node: the freest has 1 of 8 GPU free"},
    ]
    cluster.placed = [group("a")]
    await keepers.look()
    assert keepers.kept.unmet == {}


async def test_a_replica_for_which_a_node_may_come_is_waited_for() -> None:
    clock = Clock()
    cluster = FakeCluster(placed=[group("a", waiting=True, gpus=4.0)])
    cluster.told = NodeSupply(manages=True)
    keepers = made(cluster, clock=clock)
    unmet = []
    for clock.now_s in (0.0, 60.0, 599.0, 600.0):
        await keepers.look()
        unmet.append(bool(keepers.kept.unmet))
    assert unmet == [False, False, False, True]


async def test_a_replica_that_the_autoscaler_has_twice_refused_is_not() -> None:
    clock = Clock()
    cluster = FakeCluster(placed=[group("a", waiting=True, gpus=4.0)])
    cluster.told = NodeSupply(manages=True, refused=frozenset({"g-a"}))
    keepers = made(cluster, clock=clock)
    unmet = []
    for clock.now_s in (0.0, 60.0, 65.0):
        await keepers.look()
        unmet.append(bool(keepers.kept.unmet))
    assert unmet == [False, False, True]
