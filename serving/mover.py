"""One move of a pool from a generation to the next: rounds of `autoscaler.moves`, or the way back.

Before each round the cluster is looked at anew: what has been asked for, what answers, what is
free. New replicas get no request before they have answered a first one. Whatever fails (a start, a
first answer, room that is not there) leads back: the new generation goes, the old one is restored.

Invariants: the generation that goes is deleted only when the other one answers, or when nothing of
it does; everything waits with a limit.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from autoscaler.moves import (
    Blocked,
    Goal,
    Node,
    Position,
    Round,
    StepKind,
    moves,
    next_round,
    way_back,
)
from cluster.errors import UnavailableError
from serving.generations import Generation, ending
from serving.layouts import Apps, in_words
from serving.messages import ReplicaReport
from serving.scaler import DeploymentState, ServeScaler

POLL_S = 0.5
_FREED_S = 15.0  # after its replica is gone, Ray gives a placement group back

T = TypeVar("T")
Prove = Callable[[ReplicaReport], Awaitable[str]]
States = Mapping[str, DeploymentState]

logger = logging.getLogger("shardwise.controller")


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a replica may take to start, and to finish what it has begun; seconds."""

    start_s: float
    stop_s: float


class MoveFailedError(Exception):
    """The move cannot go on; the message says why."""


class Mover:
    """`prove`: why a replica does not answer, empty if it does. `reports`: what is heard now."""

    def __init__(
        self,
        *,
        old: Generation,
        new: Generation,
        goal: Goal,
        scaler: ServeScaler,
        apps: Apps,
        reports: Callable[[], Mapping[str, ReplicaReport]],
        prove: Prove,
        patience: Patience,
        tell: Callable[[str], None],
    ) -> None:
        self._old, self._new, self._goal = old, new, goal
        self._scaler, self._apps = scaler, apps
        self._reports, self._prove = reports, prove
        self._patience, self._tell = patience, tell
        self.proven: frozenset[str] = frozenset()

    async def preview(self) -> list[str]:
        """The steps as they should come, in words. Raises MoveFailedError if there are none."""
        steps = moves(await self._position(), self._goal)
        if isinstance(steps, Blocked):
            raise MoveFailedError(steps.why)
        return in_words(steps)

    async def there(self) -> None:
        """Move. Raises MoveFailedError; then go `back`."""
        while True:
            await self._all_proven()
            steps = next_round(await self._position(), self._goal)
            if isinstance(steps, Blocked):
                raise MoveFailedError(steps.why)
            if not steps:
                break
            self._tell(in_words(steps)[0])
            await self._carry_out(steps, leaves=self._old, comes=self._new)
        await self._end(self._old)

    async def back(self) -> None:
        """Restore the old generation, then end the new one. Never raises MoveFailedError."""
        try:
            await self._retreat()
        except MoveFailedError as error:
            # Serve goes on trying what was asked of it.
            logger.warning("on the way back: %s", error)
        order = self._new.order
        assert order is not None
        await self._scale(self._old, order.restore)
        await self._delete(self._new)

    async def _retreat(self) -> None:
        order = self._new.order
        assert order is not None
        state = (await self._states()).get(self._new.name)
        good = frozenset() if state is None else state.answering & self.proven
        if not good:
            await self._delete(self._new)
        elif state is not None and state.target > len(good):
            await self._scale(self._new, len(good))  # Serve stops those first that do not answer
        while True:
            position, goal = way_back(await self._position(), self._goal, replicas=order.restore)
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
        else:
            await self._stop(leaves, count)

    async def _start(self, generation: Generation, count: int) -> None:
        state = (await self._states()).get(generation.name)
        if state is None:
            await asyncio.to_thread(self._apps.start, generation, replicas=count)
            asked = count
        else:
            asked = len(state.answering) + count
            await self._scale(generation, asked)
        await self._answering(generation, asked)

    async def _stop(self, generation: Generation, count: int) -> None:
        """Serve stops routing to them at once; they finish what they have begun."""
        states = await self._states()
        free = await self._free()
        left = max(0, len(states[generation.name].answering) - count)
        await self._scale(generation, left)
        await self._until(
            lambda now: _alive(now, generation) <= left,
            limit_s=self._patience.stop_s,
            why=f"{count} replica(s) have not ended",
        )
        until_s = time.monotonic() + _FREED_S
        while sum((await self._free()).values()) <= sum(free.values()):
            if time.monotonic() > until_s:
                return  # what is free now decides the next round
            await asyncio.sleep(POLL_S)

    async def _end(self, generation: Generation) -> None:
        """The generation has no replicas that answer: none is left, and its application goes."""
        await self._scale(generation, 0)
        await self._until(
            lambda now: _alive(now, generation) == 0,
            limit_s=self._patience.stop_s,
            why="the old replicas have not ended",
        )
        if generation.order is not None:
            await self._delete(generation)

    async def _delete(self, generation: Generation) -> None:
        if generation.name not in await self._states():
            return
        await asyncio.to_thread(self._apps.delete, generation)
        try:
            await self._until(
                lambda now: generation.name not in now,
                limit_s=self._patience.stop_s,
                why=f"Serve has not deleted {generation.name}",
            )
        except MoveFailedError as error:
            logger.warning("%s", error)

    async def _all_proven(self) -> None:
        """Every new replica that was asked for answers, and has answered a first request."""
        state = (await self._states()).get(self._new.name)
        if state is None or not state.target:
            return
        await self._answering(self._new, state.target)
        ids = (await self._states())[self._new.name].answering
        for replica_id in sorted(ids - self.proven):
            self._tell(f"ask replica {replica_id} for a first answer")
            why = await self._prove(self._reports()[replica_id])
            if why:
                raise MoveFailedError(f"the first answer did not come: {why}")
            self.proven |= {replica_id}

    async def _answering(self, generation: Generation, count: int) -> None:
        """Wait until so many replicas answer and have reported."""

        def there(now: States) -> bool:
            state = now.get(generation.name)
            if state is None:
                return False
            if state.status == "DEPLOY_FAILED":
                raise MoveFailedError(f"its replicas do not start: {_last_line(state.message)}")
            return len(state.answering & self._reports().keys()) >= count

        await self._until(
            there,
            limit_s=self._patience.start_s,
            why=f"{count} replica(s) of {generation.name} do not answer",
            state=generation.name,
        )

    async def _until(
        self, holds: Callable[[States], bool], *, limit_s: float, why: str, state: str = ""
    ) -> None:
        until_s = time.monotonic() + limit_s
        while True:
            states = await self._states()
            if holds(states):
                return
            if time.monotonic() > until_s:
                told = states[state].message if state in states else ""
                more = f" ({_last_line(told)})" if told else ""
                raise MoveFailedError(f"{why} after {limit_s:g} s{more}")
            await asyncio.sleep(POLL_S)

    async def _position(self) -> Position:
        states, free = await self._states(), await self._free()
        old, new = states.get(self._old.name), states.get(self._new.name)
        counts = (
            _by_node(old, frozenset() if old is None else old.answering),
            _by_node(new, frozenset() if new is None else new.answering & self.proven),
        )
        nodes = [
            Node(free=int(free.get(name, 0)), old=counts[0][name], new=counts[1][name])
            for name in sorted({*free, *counts[0], *counts[1]})
        ]
        if self._spans_nodes():
            nodes = [
                Node(
                    free=sum(node.free for node in nodes),
                    old=sum(node.old for node in nodes),
                    new=sum(node.new for node in nodes),
                )
            ]
        return Position(nodes=tuple(nodes))

    def _spans_nodes(self) -> bool:
        most = self._new.plan.cluster.devices_per_node
        return max(self._goal.old.devices, self._goal.new.devices) > most

    async def _free(self) -> dict[str, float]:
        return await asyncio.to_thread(self._apps.free)

    async def _scale(self, generation: Generation, replicas: int) -> None:
        await self._patiently(lambda: self._scaler.scale(generation.name, replicas))

    async def _states(self) -> States:
        return await self._patiently(self._scaler.states)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask Serve, which may be away for a moment."""
        until_s = time.monotonic() + self._patience.start_s
        while True:
            try:
                return await ask()
            except UnavailableError as error:
                if time.monotonic() > until_s:
                    raise MoveFailedError(str(error)) from error
                await asyncio.sleep(POLL_S)


def _alive(states: States, generation: Generation) -> int:
    state = states.get(generation.name)
    return 0 if state is None or ending(state) else len(state.replicas)


def _by_node(state: DeploymentState | None, ids: frozenset[str]) -> Counter[str]:
    replicas = () if state is None else state.replicas
    return Counter(replica.node_id for replica in replicas if replica.replica_id in ids)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "Serve does not say why"
