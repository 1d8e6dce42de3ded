"""The engine replica: the Serve deployment around one engine.

It answers requests of the gateway, reports its load to the controller about once a second, and
dies at once when its engine does: a live actor in front of a dead engine would only delay Serve.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import ray
from ray import serve

from serving.engine.engine import Engine
from serving.loopback import bind_to_node_address
from serving.messages import EngineReply, EngineRequest, EngineSpec, ReplicaReport

REPORT_INTERVAL_S = 1.0
REPORT_TIMEOUT_S = 5.0

logger = logging.getLogger("ray.serve")


class EngineReplica:
    """Serve deployment class. Constructed by Serve in the first bundle of the replica's group."""

    async def __init__(self, spec: EngineSpec) -> None:  # type: ignore[misc]  # Serve awaits it
        bind_to_node_address()
        self._spec = spec
        self._replica_id = serve.get_replica_context().replica_id.unique_id
        self._engine = await Engine.start(spec)
        self._started_s = time.time()
        self._controller: Any = None
        self._reporting = asyncio.create_task(self._report_until_dead())

    async def generate(self, request: EngineRequest) -> AsyncIterator[list[EngineReply]]:
        """Replies of the engine, as lists: whatever has arrived since the last one was taken.

        The first reply is never held back; a list longer than one means the link was slower
        than the engine, and one message then carries what would have been many.
        """
        replies: asyncio.Queue[EngineReply | None] = asyncio.Queue()
        pump = asyncio.create_task(self._pump(request, replies))
        try:
            finished = False
            while not finished:
                batch = [await replies.get()]
                while not replies.empty():
                    batch.append(replies.get_nowait())
                finished = batch[-1] is None
                ready = [reply for reply in batch if reply is not None]
                if ready:
                    yield ready
            await pump
        finally:
            pump.cancel()  # reaches the engine as an abort if it is still generating

    async def _pump(
        self, request: EngineRequest, replies: asyncio.Queue[EngineReply | None]
    ) -> None:
        try:
            async for reply in self._engine.generate(request):
                replies.put_nowait(reply)
        finally:
            replies.put_nowait(None)

    async def check_health(self) -> None:
        """Called by Serve; raises if the engine is dead."""
        await self._engine.check()

    def report(self) -> ReplicaReport:
        """This replica's load now."""
        stats = self._engine.stats()
        return ReplicaReport(
            pool=self._spec.pool,
            replica_id=self._replica_id,
            sent_s=time.time(),
            started_s=self._started_s,
            pid=os.getpid(),
            running=int(stats["running"]),
            waiting=int(stats["waiting"]),
            kv_usage=stats["kv_usage"],
        )

    async def _report_until_dead(self) -> None:
        while True:
            try:
                await self._engine.check()
            except Exception:
                logger.exception("engine of replica %s is dead, leaving", self._replica_id)
                os._exit(1)
            try:
                await self._tell_controller()
            except Exception as error:
                # Away or restarting: forget the handle and go on, or nobody would hear of this
                # replica again.
                logger.warning("the controller does not hear this replica: %r", error)
                self._controller = None
            await asyncio.sleep(REPORT_INTERVAL_S)

    async def _tell_controller(self) -> None:
        if self._controller is None:
            # In a thread: it asks Ray's head, and streams must not wait for it.
            self._controller = await asyncio.to_thread(
                ray.get_actor, self._spec.controller, namespace=self._spec.namespace
            )
        async with asyncio.timeout(REPORT_TIMEOUT_S):
            await self._controller.observe_replica.remote(self.report())
