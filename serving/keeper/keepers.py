"""How does the controller learn what its replicas use, and what is left of those that are gone?

Every few seconds it asks the keeper of each node, with the roll of the replicas there are. A
replica is on the roll while Serve has it in its books or Ray an actor of it. Placement groups of
replicas that are on no roll are removed; one that Ray cannot place for too long is explained.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.ray_backend.node_supply import NO_SUPPLY, Refusals
from cluster.ray_backend.unmet import NodeRoom, unmet
from serving.keeper.account import Kept, NodeAccount, ReplicaUse, Roll, joined
from serving.keeper.ray_cluster import Cluster, Rank, ReplicaGroup
from serving.keeper.vacant import Vacant

ANSWER_S = 20.0  # a keeper that takes longer is passed over
_SWEPT_KEPT = 20

logger = logging.getLogger("shardwise.controller")


@dataclass(frozen=True, kw_only=True)
class KeeperSpec:
    """What keeping needs. `application`: what our processes are marked with (`keeper.mark`).

    `look_s`: between two looks. `orphan_grace_s`: how long a replica must be gone before what is
    left of it is ended. `placement_timeout_s`: how long Ray may take to place one, and
    `node_timeout_s` where its autoscaler may bring a node for it. `leave_s`: how long a node must
    have held no replica before it is left, None: never.
    """

    application: str
    app: str
    namespace: str
    look_s: float = 5.0
    orphan_grace_s: float = 30.0
    placement_timeout_s: float = 60.0
    node_timeout_s: float = 600.0
    leave_s: float | None = None


class Keepers:
    """The keepers of all nodes. `living`: ids of the replicas in Serve's books, None: unknown."""

    def __init__(
        self,
        spec: KeeperSpec,
        cluster: Cluster,
        *,
        living: Callable[[], frozenset[str] | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._cluster = cluster
        self._living = living
        self._clock = clock
        self._handles: dict[str, Any] = {}
        self._asking: dict[str, asyncio.Task[NodeAccount]] = {}
        self._waiting_s: dict[str, float] = {}
        self._refusals = Refusals()
        self._unowned_s: dict[str, float] = {}
        self._vacant = Vacant(spec.leave_s, clock=clock)
        self._left: frozenset[str] = frozenset()
        self.kept = Kept()

    async def run(self) -> None:
        """Look for ever. What cannot be looked at is unknown until it can."""
        while True:
            await asyncio.sleep(self._spec.look_s)
            try:
                await self.look()
            except Exception as error:
                self.kept.uses = {}
                self.kept.trouble = {"keepers": repr(error)}
                logger.warning("the nodes could not be looked at: %r", error)

    async def look(self) -> None:
        """One look at every node."""
        rooms = await asyncio.to_thread(self._cluster.rooms)
        groups = await asyncio.to_thread(self._cluster.groups)
        ranks = await asyncio.to_thread(self._cluster.ranks, groups)
        known = self._living()
        living = None if known is None else known | {rank.replica_id for rank in ranks}
        self._drop_keepers_of_gone_nodes(rooms)
        await self._leave(self._vacant.nodes(rooms, ranks))
        kept = [node_id for node_id in rooms if node_id not in self._left]
        asked = [self._ask(node_id, _roll(ranks, node_id, living)) for node_id in kept]
        accounts = dict(zip(kept, await asyncio.gather(*asked), strict=True))
        self._note(accounts, rooms, ranks)
        await self._remove_unowned(groups, living)
        self.kept.unmet = await self._unmet(groups, list(rooms.values()))

    async def _ask(self, node_id: str, roll: Roll) -> NodeAccount | str:
        """A keeper's account, or why there is none. One that is still busy is not asked twice."""
        try:
            if node_id not in self._asking:
                if node_id not in self._handles:
                    handle = await asyncio.to_thread(self._cluster.keeper, node_id)
                    self._handles[node_id] = handle
                self._asking[node_id] = asyncio.ensure_future(
                    _answer(self._handles[node_id].look.remote(roll))
                )
            done, _ = await asyncio.wait({self._asking[node_id]}, timeout=ANSWER_S)
            if not done:
                return f"its keeper has not answered for {ANSWER_S:g} s"
            return self._asking.pop(node_id).result()
        except Exception as error:
            self._handles.pop(node_id, None)
            return f"its keeper does not answer: {error!r}"

    async def _leave(self, vacant: frozenset[str]) -> None:
        for node_id in vacant - self._left:
            self._handles.pop(node_id, None)
            asking = self._asking.pop(node_id, None)
            if asking is not None:
                asking.cancel()
            await asyncio.to_thread(self._cluster.leave, node_id)
        self._left = vacant

    def _drop_keepers_of_gone_nodes(self, rooms: Mapping[str, NodeRoom]) -> None:
        for node_id in self._handles.keys() - rooms.keys():
            self._cluster.drop_keeper(self._handles.pop(node_id))
            asking = self._asking.pop(node_id, None)
            if asking is not None:
                asking.cancel()

    def _note(
        self,
        accounts: Mapping[str, NodeAccount | str],
        rooms: Mapping[str, NodeRoom],
        ranks: Iterable[Rank],
    ) -> None:
        heard = {name: told for name, told in accounts.items() if isinstance(told, NodeAccount)}
        places: dict[str, set[str]] = {}
        for rank in ranks:
            places.setdefault(rank.replica_id, set()).add(rank.node_id)
        self.kept.uses = {
            replica_id: joined(
                [_use(heard.get(node_id), replica_id) for node_id in sorted(node_ids)]
            )
            for replica_id, node_ids in places.items()
        }
        words = {
            node_id: told.trouble if isinstance(told, NodeAccount) else told
            for node_id, told in accounts.items()
        }
        trouble = {rooms[node_id].name: text for node_id, text in words.items() if text}
        for name in trouble.keys() - self.kept.trouble.keys():  # said once
            logger.warning("node %s: %s", name, trouble[name])
        self.kept.trouble = trouble
        for account in heard.values():
            self.kept.swept.extend(account.swept)
            self.kept.counts["processes"] += len(account.swept)
        del self.kept.swept[:-_SWEPT_KEPT]

    async def _remove_unowned(
        self, groups: Iterable[ReplicaGroup], living: frozenset[str] | None
    ) -> None:
        if living is None:
            return
        unowned = {group.group_id: group for group in groups if group.replica_id not in living}
        now_s = self._clock()
        self._unowned_s = {name: self._unowned_s.get(name, now_s) for name in unowned}
        for group_id, since_s in list(self._unowned_s.items()):
            if now_s - since_s >= self._spec.orphan_grace_s:
                await asyncio.to_thread(self._cluster.remove_group, group_id)
                del self._unowned_s[group_id]
                self.kept.counts["placement_groups"] += 1
                logger.warning(
                    "the placement group of a replica that is gone is removed: %s",
                    unowned[group_id],
                )

    async def _unmet(self, groups: Iterable[ReplicaGroup], rooms: list[NodeRoom]) -> dict[str, str]:
        """What waits for too long, by pool. What a node may yet come for is given more time."""
        waiting = [group for group in groups if group.waiting]
        now_s = self._clock()
        self._waiting_s = {g.group_id: self._waiting_s.get(g.group_id, now_s) for g in waiting}
        waited_s = {g.group_id: now_s - self._waiting_s[g.group_id] for g in waiting}
        late = [g for g in waiting if waited_s[g.group_id] >= self._spec.placement_timeout_s]
        supply = await asyncio.to_thread(self._cluster.supply) if late else NO_SUPPLY
        refused = self._refusals.of(supply)
        told: dict[str, str] = {}
        for group in late:
            comes = supply.manages and group.group_id not in refused
            if comes and waited_s[group.group_id] < self._spec.node_timeout_s:
                continue
            why = unmet(group.pool, group.bundles, group.strategy, rooms)
            if why:
                told.setdefault(group.pool, why)
        return told


async def _answer(reference: Any) -> NodeAccount:
    account: NodeAccount = await reference
    return account


def _roll(ranks: Iterable[Rank], node_id: str, living: frozenset[str] | None) -> Roll:
    roots: dict[str, tuple[int, ...]] = {}
    for rank in ranks:
        if rank.node_id == node_id and rank.pid:
            roots[rank.replica_id] = (*roots.get(rank.replica_id, ()), rank.pid)
    return Roll(living=living, roots=roots)


def _use(account: NodeAccount | None, replica_id: str) -> ReplicaUse | None:
    return None if account is None else account.replicas.get(replica_id)
