"""Does a replica answer? Asked through the path that requests take.

One that no token was heard of for a while is asked for a single token, over the same link and ahead
of all others in its engine. Nobody is charged for it, it counts as nobody's load, and it is in no
log of requests. A new replica is offered to requests only after its first canary.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace

from cluster.priority import RANK
from serving.admission import PoolFront
from serving.messages import Directive, EngineError, EngineRequest, Owed, ReplicaReport
from serving.metrics import GatewayMetrics
from serving.replica_link import LinkError
from serving.watch import Watch

BEAT_S = 0.5
_AHEAD = min(RANK.values()) - 1  # of every class of requests

logger = logging.getLogger("ray.serve")


class Canaries:
    """The canaries of one gateway. `after_s`: so long after the last token of a replica."""

    def __init__(
        self,
        fronts: Iterable[PoolFront],
        *,
        watch: Watch,
        metrics: GatewayMetrics,
        after_s: float,
    ) -> None:
        self._fronts: Mapping[str, PoolFront] = {front.pool: front for front in fronts}
        self._watch, self._metrics, self._after_s = watch, metrics, after_s
        self._known: tuple[ReplicaReport, ...] = ()
        self._out: dict[str, asyncio.Task[None]] = {}

    def owed(self) -> dict[str, Owed]:
        """What this gateway is owed, by replica."""
        return self._watch.owed()

    def admit(self, directive: Directive) -> Directive:
        """The directive, closed to the replicas that have not answered a canary yet; asks those."""
        if directive.replicas is None:
            return directive
        self._known = tuple(r for r in directive.replicas if r.replica_id not in directive.lost)
        self._watch.know(report.replica_id for report in self._known)
        for front in self._fronts.values():
            front.link.observe(directive.replicas)
        self._ask_silent()
        names = (report.replica_id for report in directive.replicas)
        unproven = frozenset(name for name in names if not self._watch.heard(name))
        return replace(directive, closed=directive.closed | unproven)

    async def keep(self) -> None:
        """Ask those that are silent, until cancelled."""
        while True:
            await asyncio.sleep(BEAT_S)
            self._watch.beat(BEAT_S)
            self._ask_silent()

    def close(self) -> None:
        """Wait for no answer any more."""
        for task in self._out.values():
            task.cancel()

    def _ask_silent(self) -> None:
        for report in self._known:
            name = report.replica_id
            if name not in self._out and self._watch.silent_s(name) >= self._after_s:
                self._out[name] = asyncio.get_running_loop().create_task(self._ask(report))

    async def _ask(self, report: ReplicaReport) -> None:
        try:
            await self._answer(report)
        finally:
            self._out.pop(report.replica_id, None)

    async def _answer(self, report: ReplicaReport) -> None:
        front = self._fronts[report.pool]
        outcome = "lost"
        try:
            replies = front.link.call(_canary(front), replica_id=report.replica_id)
            async with aclosing(replies) as batches:  # type: ignore[type-var]
                async for batch in batches:
                    outcome = "refused" if isinstance(batch[0], EngineError) else "answered"
                    if outcome == "refused":
                        logger.warning("replica %s refuses a canary: %s", report.replica_id, batch)
        except LinkError as error:
            logger.warning("a canary was lost: %s", error)
        self._metrics.canaries.labels(report.pool, outcome).inc()
        if outcome != "answered":
            await asyncio.sleep(BEAT_S)  # it is asked again, but not in a loop without a pause


def _canary(front: PoolFront) -> EngineRequest:
    body: dict[str, object] = {"model": front.model_name}
    if front.embeds:
        body["input"] = "."
    else:
        body |= {"prompt": ".", "max_tokens": 1, "temperature": 0.0}
    if front.ranks:
        body["priority"] = _AHEAD
    return EngineRequest(
        kind="embeddings" if front.embeds else "completions",
        body=body,
        request_id=f"canary-{os.urandom(8).hex()}",
        tokens=0.0,
    )
