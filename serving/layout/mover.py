"""One move of a pool from a generation to the next: rounds of `autoscaler.moves`, or the way back.

Before each round the cluster is looked at anew: what has been asked for, what answers, what is
free. Nodes that are missing are asked for, until Ray's autoscaler has refused one or not brought it
in time: then there is what there is. New replicas get no request before they have answered a first
one. Whatever fails (a start, a first answer, room that is not there) leads back: the new generation
goes, the old one is restored.

Invariant: the generation that goes is deleted only when the other one answers, or when nothing of
it does.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from autoscaler.moves import Blocked, Goal, Position, Round, StepKind, moves, next_round, way_back
from serving.layout.generations import Generation, Order
from serving.layout.growth import Growth
from serving.layout.layouts import in_words
from serving.layout.move_ground import Ground, MoveFailedError
from serving.messages import ReplicaReport

FREED_S = 15.0  # after its replica is gone, Ray gives a placement group back

_LARGER = "free devices, or raise the maximum of its worker group or the size of its nodes"

Prove = Callable[[ReplicaReport], Awaitable[str]]

logger = logging.getLogger("shardwise.controller")


class Mover:
    """`prove`: why a replica does not answer, empty if it does. `tell`: hears what is being done.

    `order`: that of the new generation.
    """

    def __init__(
        self,
        *,
        old: Generation,
        new: Generation,
        order: Order,
        goal: Goal,
        ground: Ground,
        growth: Growth,
        prove: Prove,
        tell: Callable[[str], None],
    ) -> None:
        self._old, self._new, self._order, self._goal = old, new, order, goal
        self._ground, self._growth, self._prove, self._tell = ground, growth, prove, tell
        self._coming = 0
        self._refusal = ""
        self.proven: frozenset[str] = frozenset()

    async def preview(self) -> list[str]:
        """The steps as they should come, in words. Raises MoveFailedError if there are none."""
        await self._look_for_growth()
        steps = moves(await self._position(), self._goal)
        if isinstance(steps, Blocked):
            raise MoveFailedError(steps.why)
        return in_words(steps)

    async def there(self) -> None:
        """Move. Raises MoveFailedError; then go `back`."""
        await self._look_for_growth()
        while True:
            await self._all_proven()
            steps = next_round(await self._position(), self._goal)
            if isinstance(steps, Blocked):
                raise MoveFailedError(steps.why + self._refusal)
            if not steps:
                break
            self._tell(in_words(steps)[0])
            await self._carry_out(steps, leaves=self._old, comes=self._new)
        await self._ground.scale(self._old, 0)  # one that was not answering may be left
        await self._ground.gone(self._old, down_to=0)
        if self._old.order is not None:
            await self._delete(self._old)

    async def back(self) -> None:
        """Restore the old generation, then end the new one."""
        try:
            await self._retreat()
        except MoveFailedError as error:
            # Serve goes on trying what was asked of it.
            logger.warning("on the way back: %s", error)
        await self._ground.scale(self._old, self._order.restore)
        await self._delete(self._new)

    async def _retreat(self) -> None:
        state = (await self._ground.states()).get(self._new.name)
        good = frozenset() if state is None else state.answering & self.proven
        if not good:
            await self._delete(self._new)
        elif state is not None and state.target > len(good):
            # Serve stops those first that do not answer.
            await self._ground.scale(self._new, len(good))
        while True:
            position, goal = way_back(
                await self._position(), self._goal, replicas=self._order.restore
            )
            steps = next_round(position, goal)
            if isinstance(steps, Blocked):
                raise MoveFailedError(steps.why)
            if not steps:
                return
            self._tell(f"going back: {steps[0].kind} {steps[0].replicas} replica(s)")
            await self._carry_out(steps, leaves=self._new, comes=self._old)

    async def _carry_out(self, steps: Round, *, leaves: Generation, comes: Generation) -> None:
        count = steps[0].replicas
        if steps[0].kind is StepKind.START:
            await self._start(comes, count)
        elif steps[0].kind is StepKind.ASK:
            await self._ask(comes, count)
        else:
            await self._stop(leaves, count)

    async def _look_for_growth(self) -> None:
        self._coming = self._goal.replicas if await self._growth.possible() else 0

    async def _ask(self, generation: Generation, count: int) -> None:
        free = await self._ground.free()
        grown = await self._growth.by(generation, count, tell=self._tell)
        self._coming -= count
        if grown.why:
            self._coming, self._refusal = 0, f"; {grown.why}: {_LARGER}"
        devices = grown.came * self._goal.new.devices
        await self._ground.freed(free, by=devices, limit_s=FREED_S)

    async def _start(self, generation: Generation, count: int) -> None:
        state = (await self._ground.states()).get(generation.name)
        asked = count if state is None else len(state.answering) + count
        if state is None:
            await self._ground.deploy(generation, replicas=asked)
        else:
            await self._ground.scale(generation, asked)
        await self._ground.answering(generation, asked)

    async def _stop(self, generation: Generation, count: int) -> None:
        """Serve stops routing to them at once; they finish what they have begun."""
        free = await self._ground.free()
        state = (await self._ground.states())[generation.name]
        left = max(0, len(state.answering) - count)
        await self._ground.scale(generation, left)
        await self._ground.gone(generation, down_to=left)
        await self._ground.freed(free, by=1, limit_s=FREED_S)

    async def _delete(self, generation: Generation) -> None:
        try:
            await self._ground.delete(generation)
        except MoveFailedError as error:
            logger.warning("%s", error)

    async def _all_proven(self) -> None:
        """Every new replica that was asked for answers, and has answered a first request."""
        state = (await self._ground.states()).get(self._new.name)
        if state is None or not state.target:
            return
        await self._ground.answering(self._new, state.target)
        ids = (await self._ground.states())[self._new.name].answering
        for replica_id in sorted(ids - self.proven):
            self._tell(f"ask replica {replica_id} for a first answer")
            report = self._ground.reports().get(replica_id)
            why = "it does not report any more" if report is None else await self._prove(report)
            if why:
                raise MoveFailedError(f"the first answer did not come: {why}")
            self.proven |= {replica_id}

    async def _position(self) -> Position:
        most = self._new.plan.cluster.devices_per_node
        return await self._ground.position(
            self._old,
            self._new,
            proven=self.proven,
            coming=self._coming,
            spans=max(self._goal.old.devices, self._goal.new.devices) > most,
        )
