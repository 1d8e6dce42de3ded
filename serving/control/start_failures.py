"""Why did the last start of each pool fail?

Serve says that one did, the output of the worker it ran in says why (`serving.diagnosis`). It is
fetched once for a failed start, beside the controller's ticks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from serving.control.scaler import DeploymentState, ServeReplica
from serving.diagnosis import start_failure

Output = Callable[[ServeReplica], Awaitable[str]]


class StartFailures:
    """`words`: of the last failed start by pool, as long as something is missing there.

    `output`: fetches what a replica's worker has printed, empty if it cannot be had.
    """

    def __init__(self, output: Output) -> None:
        self.words: dict[str, str] = {}
        self._output = output
        self._starting: dict[str, dict[str, ServeReplica]] = {}
        self._explaining: set[asyncio.Task[None]] = set()

    def observe(self, pools: Mapping[str, DeploymentState]) -> None:
        """Serve's state as of now."""
        for pool, state in pools.items():
            gone = [
                replica
                for name, replica in self._starting.get(pool, {}).items()
                if not _there(state.replica(name))
            ]
            self._starting[pool] = {r.replica_id: r for r in state.replicas if r.starts}
            if gone and "failed to start" in state.message:
                task = asyncio.get_running_loop().create_task(self._explain(pool, gone[-1], state))
                self._explaining.add(task)
                task.add_done_callback(self._explaining.discard)
            elif state.status == "HEALTHY" and state.running >= state.target:
                self.words.pop(pool, None)

    async def _explain(self, pool: str, replica: ServeReplica, state: DeploymentState) -> None:
        self.words[pool] = start_failure(state.message, output=await self._output(replica))


def _there(replica: ServeReplica | None) -> bool:
    return replica is not None and (replica.starts or replica.answers)
