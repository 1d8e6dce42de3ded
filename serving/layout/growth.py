"""Do nodes come for new replicas? Ray's autoscaler is asked, and listened to with a limit.

Invariant: nothing stays asked for, however the asking ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster.ray_backend.node_supply import Refusals
from serving.layout.generations import Generation
from serving.layout.layouts import Nodes

POLL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Grown:
    """How asking has ended: `came` of the replicas have had a node; `why` not all, '' if all."""

    came: int
    why: str


class Growth:
    """`limit_s`: how long nodes may take, seconds."""

    def __init__(self, nodes: Nodes, *, limit_s: float) -> None:
        self._nodes, self._limit_s = nodes, limit_s

    async def possible(self) -> bool:
        """Whether there is somebody to ask."""
        return (await asyncio.to_thread(self._nodes.supply)).manages

    async def by(
        self, generation: Generation, replicas: int, *, tell: Callable[[str], None]
    ) -> Grown:
        """Ask for nodes with room for so many replicas, and wait until they are up."""
        try:
            asked = await asyncio.to_thread(self._nodes.ask, generation, replicas=replicas)
            missing, why = await self._listen(tell)
        finally:
            await asyncio.to_thread(self._nodes.withdraw)
        if not missing:
            return Grown(came=replicas, why="")
        told = f"Ray's autoscaler was asked for {asked} and {why} for {missing} of {replicas}"
        return Grown(came=replicas - missing, why=told)

    async def _listen(self, tell: Callable[[str], None]) -> tuple[int, str]:
        """How many still wait at the end, and why they will not be served."""
        began_s, refusals, told = time.monotonic(), Refusals(), ""
        while waiting := await asyncio.to_thread(self._nodes.waiting):
            supply = await asyncio.to_thread(self._nodes.supply)
            if supply.doing not in ("", told):
                told = supply.doing
                tell(f"nodes: {told}")
            if waiting <= refusals.of(supply):
                return len(waiting), "has no node, nor may add one,"
            if time.monotonic() - began_s > self._limit_s:
                last = f" (last told: {told})" if told else ""
                return len(waiting), f"has brought no node within {self._limit_s:g} s{last}"
            await asyncio.sleep(POLL_S)
        return 0, ""
