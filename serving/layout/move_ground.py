"""What a move stands on: Serve and the cluster as they are, asked with patience.

Invariant: everything waits with a limit, after which MoveFailedError says what did not happen.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from autoscaler.moves import Node, Position
from cluster.errors import UnavailableError
from serving.control.scaler import DeploymentState, ServeScaler
from serving.layout.generations import Generation, ending
from serving.layout.layouts import Apps
from serving.messages import ReplicaReport

POLL_S = 0.5

T = TypeVar("T")
States = Mapping[str, DeploymentState]


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a replica may take to start, and to finish what it has begun; seconds."""

    start_s: float
    stop_s: float


class MoveFailedError(Exception):
    """The move cannot go on; the message says why."""


class Ground:
    """`reports`: what replicas say now, by id."""

    def __init__(
        self,
        *,
        scaler: ServeScaler,
        apps: Apps,
        reports: Callable[[], Mapping[str, ReplicaReport]],
        patience: Patience,
    ) -> None:
        self._scaler, self._apps = scaler, apps
        self.reports, self._patience = reports, patience

    async def states(self) -> States:
        """As Serve has them."""
        return await self._patiently(self._scaler.states)

    async def scale(self, generation: Generation, replicas: int) -> None:
        """Ask for a number of replicas."""
        await self._patiently(lambda: self._scaler.scale(generation.name, replicas))

    async def deploy(self, generation: Generation, *, replicas: int) -> None:
        """Ask for a generation that is not there yet."""
        await asyncio.to_thread(self._apps.start, generation, replicas=replicas)

    async def delete(self, generation: Generation) -> None:
        """Delete it, if it is there, and wait until it is not."""
        if generation.name not in await self.states():
            return
        await asyncio.to_thread(self._apps.delete, generation)
        await self._until(
            lambda now: generation.name not in now,
            limit_s=self._patience.stop_s,
            why=f"Serve has not deleted {generation.name}",
        )

    async def free(self) -> dict[str, float]:
        """Devices nobody holds, by node."""
        return await asyncio.to_thread(self._apps.free)

    async def answering(self, generation: Generation, count: int) -> None:
        """Wait until so many replicas answer and have reported."""

        def there(now: States) -> bool:
            state = now.get(generation.name)
            if state is None:
                return False
            if state.status == "DEPLOY_FAILED":
                raise MoveFailedError(f"its replicas do not start: {_last_line(state.message)}")
            return len(state.answering & self.reports().keys()) >= count

        await self._until(
            there,
            limit_s=self._patience.start_s,
            why=f"{count} replica(s) of {generation.name} do not answer",
            of=generation.name,
        )

    async def gone(self, generation: Generation, *, down_to: int) -> None:
        """Wait until no more than so many replicas are left, in any state."""
        await self._until(
            lambda now: _alive(now, generation) <= down_to,
            limit_s=self._patience.stop_s,
            why=f"replicas of {generation.name} have not ended",
        )

    async def freed(self, before: Mapping[str, float], *, by: int, limit_s: float) -> None:
        """Wait until so many more devices are free than before, but not for ever.

        What is free then counts.
        """
        until_s = time.monotonic() + limit_s
        while sum((await self.free()).values()) < sum(before.values()) + by:
            if time.monotonic() > until_s:
                return
            await asyncio.sleep(POLL_S)

    async def position(
        self,
        old: Generation,
        new: Generation,
        *,
        proven: frozenset[str],
        spans: bool,
        coming: int = 0,
    ) -> Position:
        """Where the move is. `spans`: a replica may span nodes, so they count as one.

        `coming`: new replicas for which nodes may be asked for.
        """
        states, free = await self.states(), await self.free()
        on_old = _by_node(states.get(old.name))
        on_new = _by_node(states.get(new.name), among=proven)
        nodes = [
            Node(free=int(free.get(name, 0)), old=on_old[name], new=on_new[name])
            for name in sorted({*free, *on_old, *on_new})
        ]
        if spans:
            nodes = [
                Node(
                    free=sum(node.free for node in nodes),
                    old=on_old.total(),
                    new=on_new.total(),
                )
            ]
        return Position(nodes=tuple(nodes), coming=coming)

    async def _until(
        self, holds: Callable[[States], bool], *, limit_s: float, why: str, of: str = ""
    ) -> None:
        until_s = time.monotonic() + limit_s
        while True:
            states = await self.states()
            if holds(states):
                return
            if time.monotonic() > until_s:
                told = states[of].message if of in states else ""
                more = f" ({_last_line(told)})" if told else ""
                raise MoveFailedError(f"{why} after {limit_s:g} s{more}")
            await asyncio.sleep(POLL_S)

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


def _by_node(state: DeploymentState | None, *, among: frozenset[str] | None = None) -> Counter[str]:
    """Replicas that answer, those `among` only where it is given, by node."""
    if state is None:
        return Counter()
    ids = state.answering if among is None else state.answering & among
    return Counter(r.node_id for r in state.replicas if r.replica_id in ids)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "Serve does not say why"
