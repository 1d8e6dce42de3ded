"""How is a decision about one replica carried out? Out of the routing first, then out of the world.

A repair takes seconds and the controller ticks on meanwhile; each runs as a task of its own, one at
a time for a replica.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from serving.control.scaler import ServeReplica

# Gateways ask twice a second where to send requests.
REROUTE_S = 1.0

logger = logging.getLogger("shardwise.controller")

End = Callable[[ServeReplica], Awaitable[None]]


class Repairs:
    """Restarts under way. `end` ends a replica (`serving.control.replica_end.end_replica`)."""

    def __init__(self, *, end: End, reroute_s: float = REROUTE_S) -> None:
        self._end, self._reroute_s = end, reroute_s
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def restart(self, replica: ServeReplica) -> None:
        """End a replica that gateways have been told to leave; Serve starts another."""
        if replica.replica_id not in self._under_way:
            task = asyncio.get_running_loop().create_task(self._restart(replica))
            self._under_way[replica.replica_id] = task
            task.add_done_callback(lambda _: self._under_way.pop(replica.replica_id, None))

    async def _restart(self, replica: ServeReplica) -> None:
        await asyncio.sleep(self._reroute_s)
        try:
            await self._end(replica)
        except Exception:
            # It is stalled still at the next ticks, which order it again.
            logger.exception("replica %s could not be ended", replica.replica_id)
