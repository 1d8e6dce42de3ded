"""The engine replica: the Serve deployment around one engine.

Gateways reach it over a socket (`serving.engine.listener`). It reports its load to the controller
about once a second, and dies at once when its engine does: a live actor in front of a dead engine
would only delay Serve.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import replace
from typing import Any

import ray
from ray import serve

from serving import tracing
from serving.engine.engine import Engine
from serving.engine.listener import Listener
from serving.engine.spans import with_spans
from serving.engine.warmup import warm_up
from serving.keeper.mark import application_id, mark_descendants
from serving.loopback import bind_to_node_address
from serving.messages import EngineSpec, ReplicaReport
from serving.weights.replica_source import local_source
from serving.weights.spec import StartParts

REPORT_INTERVAL_S = 1.0
REPORT_TIMEOUT_S = 5.0

logger = logging.getLogger("ray.serve")


class EngineReplica:
    """Serve deployment class. Constructed by Serve in the first bundle of the replica's group."""

    _reporting: asyncio.Task[None] | None = None  # from when it has started
    engine = Engine  # what it runs; tests of everything around it have one that is scripted

    async def __init__(self, spec: EngineSpec) -> None:  # type: ignore[misc]  # Serve awaits it
        bind_to_node_address()
        self._spec = spec
        self._replica_id = serve.get_replica_context().replica_id.unique_id
        mark_descendants(application_id(spec.link_secret), self._replica_id)
        self._traces = tracing.set_up("shardwise-engine")  # before vLLM reads the environment
        began_s = time.monotonic()
        spec = replace(spec, model_source=await local_source(spec))
        here_s = time.monotonic()
        self._engine = await self.engine.start(spec)
        loaded_s = time.monotonic()
        await warm_up(self._engine.generate, spec.warmup, model=spec.model_name)
        self._start = StartParts(
            weights_s=here_s - began_s,
            engine_s=loaded_s - here_s,
            warmup_s=time.monotonic() - loaded_s,
        )
        logger.info("replica %s has started: %s", self._replica_id, self._start)
        generate = with_spans(
            self._engine.generate,
            self._traces.tracer,
            pool=spec.pool,
            replica_id=self._replica_id,
        )
        self._listener = await Listener.start(
            generate, host=ray.util.get_node_ip_address(), secret=spec.link_secret
        )
        self._started_s = time.time()
        self._controller: Any = None
        self._reporting = asyncio.create_task(self._report_until_dead())

    async def __del__(self) -> None:
        """Serve's hook before it ends a replica: the answers that were begun are finished.

        Serve itself sees none of them, they travel beside it. It waits as long as it grants a
        shutdown (`graceful_shutdown_timeout_s`).
        """
        if self._reporting is None:  # its start has failed; that is what should be told
            return
        self._reporting.cancel()  # no gateway should choose this replica any more
        await self._listener.leave()
        await self._listener.close()
        await asyncio.to_thread(self._traces.flush)

    def reconfigure(self, _: object) -> None:
        """Called by Serve for what a generation says of itself (`serving.layout.generations`)."""

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
            address=self._listener.address,
            running=int(stats["running"]),
            waiting=int(stats["waiting"]),
            kv_usage=stats["kv_usage"],
            limits=self._spec.limits,
            generation=self._spec.generation,
            prompt_tokens=int(stats.get("prompt_tokens", 0)),
            output_tokens=int(stats.get("output_tokens", 0)),
            start=self._start,
            steps=int(stats["steps"]),
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
