"""What happens to a request between its body and its place in line?

    admit (parse, model, context, tier) → deliver (`serving.delivery`)

The gateway's core: no HTTP (`serving.http_api` puts ASGI around it) and no controller
(`serving.exchange` brings its directives); tests drive it over a fake link.

Invariant: what a tier does to a request is decided in one step with its place in line.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from autoscaler.grant import Asked, Granted, grant
from autoscaler.snapshot import Tier
from cluster.lengths.predictors import PREDICTORS
from cluster.priority import RANK
from serving.access import Caller, Door, Reserve
from serving.admission import Fit, PoolFront, check_kind, engine_body, fit
from serving.control.workload import Served
from serving.degrade import headers, told, with_usage
from serving.delivery import Admitted, Delivery, Stance
from serving.errors import ApiError, unknown_model
from serving.journey import Grant, Journey, Journeys
from serving.keys import KeyRing
from serving.lengths import Lengths, counted
from serving.long_input.apply import Handled
from serving.long_input.choice import Choice
from serving.long_input.handler import LongInput
from serving.messages import (
    DONE,
    Directive,
    EngineReply,
    EngineRequest,
    GatewayReport,
    PoolLoad,
)
from serving.metering import Meter
from serving.metrics import GatewayMetrics
from serving.offload import OffLoop
from serving.requests import Body, BodyKind, EmbeddingBody, parse_body
from serving.resumption import can_resume, transcript_of, with_ids
from serving.settings.config import LimitsSection, LongInputSection

# An account of a controller that was heard so long ago says nothing of now.
ACCOUNT_STALE_S = 60.0


class Service:
    """The gateway's core, one per gateway process. `fronts`: the main pool's first.

    `ring`: the API keys, None if anyone may ask. `journeys`: where requests are traced and logged.
    """

    def __init__(
        self,
        *,
        fronts: Sequence[PoolFront],
        limits: LimitsSection,
        metrics: GatewayMetrics,
        ring: KeyRing | None = None,
        long_input: LongInputSection | None = None,
        clock: Callable[[], float] = time.time,
        journeys: Journeys | None = None,
    ) -> None:
        self.limits = limits
        self.metrics = metrics
        self.journeys = journeys or Journeys(clock=clock)
        self.door = Door(ring, clock=clock)
        self._fronts = {front.pool: front for front in fronts}
        self._main = fronts[0]
        self._light = self._fronts.get("light")
        predictor = PREDICTORS[limits.length_predictor]
        self._lengths = {
            front.pool: Lengths(
                pool=front.pool,
                predictor=predictor(front.expected_output),
                work=front.work,
                metrics=metrics,
            )
            for front in fronts
        }
        self._served = {front.pool: Served() for front in fronts}
        self._clock = clock
        self._stance = Stance()
        self._troubles: dict[str, str] = {}
        self._delivery = Delivery(limits=limits, metrics=metrics, stance=self._stance, clock=clock)
        self._gateway_id = uuid.uuid4().hex[:8]
        self.address = ""
        self._heard_s = clock()
        self.off_loop = OffLoop()
        self._long_input = LongInput(
            long_input or LongInputSection(), off_loop=self.off_loop, metrics=metrics, clock=clock
        )

    @property
    def tier(self) -> Tier:
        """The degradation tier in force."""
        return self._stance.tier

    @property
    def fronts(self) -> dict[str, PoolFront]:
        """Pools by the name under which their model answers, the planned one first."""
        return {front.model_name: front for front in self._fronts.values()}

    @property
    def main_model(self) -> str:
        """The name of the planned model."""
        return self._main.model_name

    @property
    def ready(self) -> bool:
        """Whether the main pool has a replica that answers, or would get one if it were asked."""
        wakes = self._main.sleeps and self._main.pool not in self._troubles
        return self._main.dispatcher.ready > 0 or wakes

    def now_s(self) -> float:
        """This service's clock."""
        return self._clock()

    def follow(self, directive: Directive) -> None:
        """Take over what the controller says."""
        self._stance.tier = directive.tier
        self._stance.retry_after_s = directive.retry_after_s
        self.door.charged_elsewhere(directive.charged)
        self._troubles = directive.troubles
        self._heard_s = self._clock()
        self.metrics.account.samples = directive.account
        for pool, work in directive.work.items():
            self._lengths[pool].reckon_by(work)
        for pool in self._fronts:
            self.metrics.held_starts.labels(pool).set(pool in directive.troubles)
        if directive.replicas is None:
            return  # those known before stay in use
        self.metrics.started(directive.replicas)
        self.metrics.account.replicas = directive.replicas
        offered = [r for r in directive.replicas if r.replica_id not in directive.closed]
        for front in self._fronts.values():
            front.link.observe(directive.replicas)
            front.dispatcher.observe(offered, directive.elsewhere)
            front.link.lose(directive.lost)

    def fail_open(self) -> None:
        """Degrade nobody: whoever said so has been gone for too long."""
        self._stance.tier = Tier.NORMAL

    def report(self) -> GatewayReport:
        """This gateway's traffic, for the controller."""
        return GatewayReport(
            gateway_id=self._gateway_id,
            address=self.address,
            sent_s=self._clock(),
            loads=tuple(self._loads()),
            in_flight={
                replica_id: held
                for front in self._fronts.values()
                for replica_id, held in front.dispatcher.in_flight().items()
            },
            charged=self.door.charged(),
            served={pool: replace(served) for pool, served in self._served.items()},
        )

    def refresh_gauges(self) -> None:
        """Set the gauges to the state of this moment. Called on the event loop."""
        for load in self._loads():
            self.metrics.queued.labels(load.pool).set(load.queued_requests)
            self.metrics.in_flight.labels(load.pool).set(load.in_flight_tokens)
            self.metrics.arriving.labels(load.pool).set(load.arrival_work)
            self.metrics.oldest_wait.labels(load.pool).set(load.oldest_wait_s)
            ready = self._fronts[load.pool].dispatcher.ready
            self.metrics.ready.labels(load.pool).set(ready)
        silent_s = self._clock() - self._heard_s
        self.metrics.directive_age.set(silent_s)
        if silent_s > ACCOUNT_STALE_S:
            self.metrics.account.samples = ()  # unknown by now
        self.metrics.tier.set(int(self.tier))
        self.metrics.tasks.set(len(asyncio.all_tasks()))

    def front_of(self, model: str) -> PoolFront:
        """The pool whose model has this name. Raises ApiError (404)."""
        try:
            return self.fronts[model]
        except KeyError:
            raise unknown_model(model, known=self.fronts) from None

    async def admit(
        self,
        raw: bytes,
        *,
        kind: BodyKind,
        caller: Caller,
        arrived_s: float,
        choice: Choice,
        journey: Journey,
    ) -> Admitted:
        """Check a request and fit it to the context and the tier. Raises ApiError."""
        body = await self.off_loop.run(lambda: parse_body(raw, kind), size_bytes=len(raw))
        priority = caller.priority
        asked_front = self.front_of(body.model)
        caller.check_model(body.model)
        check_kind(body, asked_front)
        journey.asked(body, model=body.model, pool=asked_front.pool)
        handled = await self._long_input.handle(
            body,
            front=asked_front,
            choice=choice,
            owner="" if caller.key is None else caller.key.name,
            size_bytes=len(raw),
        )
        body = handled.body
        asked = fit(body, asked_front, prompts=handled.prompts)
        journey.tokenised(asked.prompt_tokens)
        yields = asked_front is self._main
        light = await self._light_fit(body, size_bytes=len(raw)) if yields else None
        # From here on nothing is awaited: tier, line and the place in it belong together.
        granted = grant(
            Asked(
                priority=priority,
                logprobs=body.wants_logprobs,
                max_tokens=asked.max_tokens,
                room=asked.room,
                served_by_main=yields,
                light_room=None if light is None else light.room,
            ),
            tier=self.tier,
            output_cap=self.limits.output_cap,
        )
        reserve = caller.reserve(
            prompt=asked.prompt_tokens,
            output=self._output(asked, limit=granted.max_tokens, front=asked_front),
            now_s=self._clock(),
        )
        front = self._light if granted.light and self._light is not None else asked_front
        lengths = self._lengths[front.pool]
        expected = lengths.expected(body, asked, limit=asked.max_tokens, caller=caller)
        front.dispatcher.arrived(expected.load, expected.work)
        self._served[front.pool].arrived += 1
        if granted.max_tokens != asked.max_tokens:
            expected = lengths.expected(body, asked, limit=granted.max_tokens, caller=caller)
        self._count_changes(["shed"] if granted.refused else granted.changes)
        if granted.refused:
            reserve.void(self._clock())
            raise self._stance.busy("The service sheds load", code="overloaded")
        if front.dispatcher.line_full_for(priority):
            reserve.void(self._clock())
            raise self._stance.busy("The waiting line is full", code="queue_full")
        request = EngineRequest(
            kind=body.kind,
            body=engine_body(
                body,
                granted=granted,
                model=front.model_name,
                metered=caller.key is not None,
                rank=RANK[priority] if front.ranks else None,
            ),
            request_id=os.urandom(16).hex(),
            tokens=expected.load,
        )
        parsed = front.parsed and request.kind == "chat"
        noted = self.limits.resumes > 0 and not parsed and can_resume(request)
        metered = caller.key is not None or not noted  # else the transcript counts
        meter = _meter(body, prompt=asked.prompt_tokens) if metered else None
        transcript = transcript_of(request, front.decode) if noted else None
        journey.granted(
            Grant(
                pool=front.pool,
                model=front.model_name,
                tier=int(self.tier),
                changes=granted.changes + handled.changes,
                max_tokens=granted.max_tokens,
                meter=meter,
                transcript=transcript,
            )
        )
        return Admitted(
            front=front,
            request=with_ids(request) if noted else request,
            priority=priority,
            prefix=asked.chain,
            headers=_headers(granted, handled, tier=self.tier) | reserve.headers(self._clock()),
            arrived_s=arrived_s,
            reserve=reserve,
            meter=meter,
            expected=expected,
            transcript=transcript,
            told=_told(granted, handled, tier=self.tier),
            journey=journey,
        )

    def replies(self, admitted: Admitted) -> AsyncGenerator[list[EngineReply], None]:
        """The answer; see `Delivery.replies`."""
        replies = self._delivery.replies(admitted)
        if admitted.told:
            replies = _explained(admitted, replies)
        return self._heard(admitted, replies)

    async def _heard(
        self, admitted: Admitted, replies: AsyncGenerator[list[EngineReply], None]
    ) -> AsyncGenerator[list[EngineReply], None]:
        """The answer, to be learned from when it has come to its end.

        However it ends, what it has used is charged to its key.
        """
        meter = admitted.meter
        last: EngineReply | None = None
        try:
            async with aclosing(replies):
                async for batch in replies:
                    last = batch[-1]
                    told = batch if meter is None else meter.hear(batch)
                    if told:
                        yield told
            if last == DONE or isinstance(last, dict):
                self._learn(admitted)
        finally:
            if admitted.reserve.key and meter is not None:
                self._charge(admitted.reserve, meter)

    def _charge(self, reserve: Reserve, meter: Meter) -> None:
        used = self.metrics.key_tokens
        used.labels(reserve.key, "prompt").inc(meter.prompt)
        used.labels(reserve.key, "output").inc(meter.output)
        reserve.settle(used=meter.prompt + meter.output, now_s=self._clock())

    def _learn(self, admitted: Admitted) -> None:
        output = counted(admitted.meter, admitted.transcript, stream=admitted.request.stream)
        if output is not None:
            pool, expected = admitted.front.pool, admitted.expected
            self._lengths[pool].ended(expected, output_tokens=output)
            served, times_s = self._served[pool], admitted.journey.engine_times_s
            served.ended(prompt=expected.prompt, output=output)
            if admitted.request.stream and expected.answers == 1 and times_s is not None:
                ttft_s, decode_s = times_s
                served.streamed(ttft_s=ttft_s, decode_s=decode_s, tokens=output)
                self.metrics.streamed(pool, ttft_s=ttft_s, decode_s=decode_s, tokens=output)

    async def _light_fit(self, body: Body, *, size_bytes: int) -> Fit | None:
        """How the request would fit the lighter model, None if it cannot be moved there."""
        light = self._light
        if isinstance(body, EmbeddingBody):
            return None  # vectors of two models cannot be compared
        if light is None or self.tier < Tier.LIGHT_MODEL or light.dispatcher.ready == 0:
            return None
        try:
            prompts = await self.off_loop.run(lambda: light.encode(body), size_bytes=size_bytes)
            return fit(body, light, prompts=prompts)
        except ApiError:
            return None

    def _output(self, asked: Fit, *, limit: int | None, front: PoolFront) -> int:
        """Most output tokens of all answers, or as many as are usual where no limit is set."""
        return asked.sequences * min(front.expected_output if limit is None else limit, asked.room)

    def _count_changes(self, changes: Sequence[str]) -> None:
        for change in changes:
            self.metrics.degraded.labels(change.partition("=")[0]).inc()

    def _loads(self) -> list[PoolLoad]:
        return [front.dispatcher.load() for front in self._fronts.values()]


def _meter(body: Body, *, prompt: int) -> Meter:
    wanted = body.stream_options
    return Meter(prompt=prompt, shown=wanted is not None and wanted.include_usage)


def _headers(granted: Granted, handled: Handled, *, tier: Tier) -> dict[str, str]:
    """What the response says was changed."""
    cut = {} if handled.cut is None else handled.cut.headers()
    return headers(granted, tier=tier) | cut


def _told(granted: Granted, handled: Handled, *, tier: Tier) -> dict[str, Any]:
    """The same, for those who keep the usage."""
    cut = {} if handled.cut is None else {"long_input": handled.cut.details()}
    return told(granted.changes, tier=int(tier)) | cut


async def _explained(
    admitted: Admitted, replies: AsyncGenerator[list[EngineReply], None]
) -> AsyncGenerator[list[EngineReply], None]:
    """The answer of a changed request, which says so beside its usage."""
    async with aclosing(replies):
        async for batch in replies:
            yield [with_usage(reply, admitted.told) for reply in batch]
