"""How does an admitted request get its answer?

    line → slot on a replica → replies → slot given back

Invariants: every slot is given back and every place in line left, whatever ends a request; a
request is retried only while nothing of its answer has been passed on, and then taken up where it
broke off, if it can be (`serving.resumption`); an event passed on is never passed on again; an
answer that ends early ends with an error.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from autoscaler.snapshot import Tier
from cluster.priority import Priority
from cluster.waiting_line import Ask
from serving.access import Reserve
from serving.admission import PoolFront
from serving.dispatch import Slot
from serving.errors import ApiError, from_engine, too_busy, unavailable
from serving.journey import Journey
from serving.lengths import Expected
from serving.messages import DONE, EngineError, EngineReply, EngineRequest
from serving.metering import Meter
from serving.metrics import GatewayMetrics
from serving.replica_link import LinkError
from serving.resumption import Resumption
from serving.settings.config import LimitsSection
from serving.transcript import Transcript


@dataclass
class Stance:
    """What the controller last said about load; the service updates it."""

    tier: Tier = Tier.NORMAL
    retry_after_s: float = 1.0

    def busy(self, what: str, *, code: str) -> ApiError:
        """429 for a request that could be served at another time."""
        return too_busy(
            f"{what} (tier {int(self.tier)}). Retry after {self.retry_after_s:.0f} s.",
            retry_after_s=self.retry_after_s,
            code=code,
        )


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """A request that may be served, and what the tier left of it (`headers` say so).

    `prefix`: the blocks its prompt begins with. `reserve` and `meter`: what its caller was charged,
    and what it uses. `expected`: the tokens it is expected to take. `transcript`: what a stream
    that could be taken up has said. `told`: what was changed, as said beside its usage. `journey`:
    where its steps are told.
    """

    front: PoolFront
    request: EngineRequest
    priority: Priority
    prefix: tuple[int, ...]
    headers: Mapping[str, str]
    arrived_s: float
    reserve: Reserve
    meter: Meter | None
    expected: Expected
    transcript: Transcript | None
    told: Mapping[str, Any]
    journey: Journey


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What one replica is asked. `said`: where its tokens are noted; `rest`: of a broken stream."""

    request: EngineRequest
    said: Transcript | None
    journey: Journey
    rest: Resumption | None = None

    def heard(self, replies: list[EngineReply]) -> list[EngineReply]:
        """What of these is for the caller, in the words of the stream it has."""
        told = replies if self.said is None else self.said.hear(replies)
        return told if self.rest is None else [self.rest.told(reply) for reply in told]


@dataclass(frozen=True, kw_only=True)
class Begun:
    """An attempt under way: where, its first batch (None: there was none), and those to come."""

    slot: Slot
    batches: AsyncGenerator[list[EngineReply] | EngineError, None]
    first: list[EngineReply] | EngineError | None


class Delivery:
    """Answers admitted requests, one per gateway process."""

    def __init__(
        self,
        *,
        limits: LimitsSection,
        metrics: GatewayMetrics,
        stance: Stance,
        clock: Callable[[], float],
    ) -> None:
        self._limits = limits
        self._metrics = metrics
        self._stance = stance
        self._clock = clock

    async def replies(self, admitted: Admitted) -> AsyncGenerator[list[EngineReply], None]:
        """The answer, several replies at once if they came at once: SSE payloads or one response.

        Raises ApiError before the first reply; after it, an error of the engine or the link comes
        as the last reply, an `EngineError`. Close the iterator to cancel.
        """
        attempt = Attempt(
            request=admitted.request, said=admitted.transcript, journey=admitted.journey
        )
        error: EngineError | None = None
        failed: dict[str, float] = {}
        for _ in range(self._limits.attempts):
            if error is not None:
                self._metrics.retries.labels(admitted.front.pool).inc()
                admitted.journey.again("retry")
            slot = await self._place(admitted, failed=failed, error=error)
            if admitted.transcript is not None:
                admitted.transcript.begin()
            begun = await self._begin(admitted, attempt, slot)
            started = False
            try:
                async with aclosing(begun.batches) as batches:
                    batch = begun.first
                    while batch is not None and not isinstance(batch, EngineError):
                        if not started:
                            started = True
                            self._observe_first(admitted)
                        yield batch
                        batch = await anext(batches, None)
            finally:
                begun.slot.release()
            if batch is None:
                return
            error = batch
            failed = {**failed, begun.slot.replica_id: self._clock()}
            if started:
                async with aclosing(self._resumed(admitted, error, failed=failed)) as rest:
                    async for more in rest:
                        yield more
                return
            if not error.retryable:
                raise from_engine(error.status, error.message)
        raise self._gave_up(f"after {self._limits.attempts} attempts", error)

    async def _begin(self, admitted: Admitted, attempt: Attempt, slot: Slot) -> Begun:
        """The first batch, from the replica of the slot or from a better one.

        Second scheduling: a stream without a first token after `reschedule_s` is taken back, and
        the engine drops it, where another replica scores higher. Of an answer that is not streamed
        nobody could tell whether it has begun.
        """
        front, limits = admitted.front, self._limits
        moves = limits.moves if admitted.request.stream else 0
        if not moves:
            batches = self._call(front, attempt, replica_id=slot.replica_id)
            try:
                return Begun(slot=slot, batches=batches, first=await anext(batches, None))
            except BaseException:
                slot.release()
                await batches.aclose()
                raise
        while True:
            batches = self._call(front, attempt, replica_id=slot.replica_id)
            waiting = asyncio.ensure_future(anext(batches, None))
            better = None
            try:
                while better is None and not waiting.done():
                    limit_s = limits.reschedule_s if moves > 0 else None
                    await asyncio.wait({waiting}, timeout=limit_s)
                    if not waiting.done() and front.dispatcher.ready > 1:
                        better = front.dispatcher.better(slot)
                if better is None:
                    return Begun(slot=slot, batches=batches, first=waiting.result())
                # In the books before anything is awaited, or all that wait would go to one replica.
                slot = front.dispatcher.move(slot, better)
                await _drop(waiting, batches)
            except BaseException:
                slot.release()
                await _drop(waiting, batches)
                raise
            moves -= 1
            self._metrics.moved.labels(front.pool).inc()
            attempt.journey.again("move")

    async def _resumed(
        self, admitted: Admitted, error: EngineError, *, failed: dict[str, float]
    ) -> AsyncGenerator[list[EngineReply], None]:
        """The rest of an answer that broke off, from other replicas; or the error that ends it."""
        front, said = admitted.front, admitted.transcript
        for _ in range(self._limits.resumes):
            if said is None or not error.retryable:
                break
            rest = Resumption.of(admitted.request, said, max_context=front.max_context)
            if rest is None:
                break
            if rest.request is None:
                yield rest.end(said)
                return
            try:
                slot = await self._place(admitted, failed=failed, error=error)
            except ApiError as refusal:
                error = EngineError(status=503, message=refusal.message, retryable=False)
                break
            self._metrics.resumed.labels(front.pool).inc()
            admitted.journey.again("resume")
            attempt = Attempt(request=rest.request, said=said, journey=admitted.journey, rest=rest)
            try:
                calling = self._call(front, attempt, replica_id=slot.replica_id)
                async with aclosing(calling) as batches:
                    async for batch in batches:
                        if isinstance(batch, EngineError):
                            error = batch
                            break
                        yield batch
                    else:
                        return
            finally:
                slot.release()
            failed = {**failed, slot.replica_id: self._clock()}
        self._metrics.broken.labels(front.pool).inc()
        yield [error]

    async def _call(
        self, front: PoolFront, attempt: Attempt, *, replica_id: str
    ) -> AsyncGenerator[list[EngineReply] | EngineError, None]:
        """Replies of one attempt; whatever cuts them short is an EngineError at the end."""
        # A new id for each attempt: the engine may still be busy forgetting the one before.
        engine_request_id = os.urandom(16).hex()
        span = attempt.journey.attempt(replica_id, engine_request_id=engine_request_id)
        request = replace(attempt.request, request_id=engine_request_id, trace=span.headers)
        finished = False
        limit_s = self._limits.silence_s if request.stream else self._limits.answer_s
        try:
            replies = front.link.call(request, replica_id=replica_id)
            async with aclosing(replies) as messages:  # type: ignore[type-var]
                async for message in _never_silent(messages, limit_s=limit_s):
                    good, error = _before_error(message)
                    if good:
                        finished = isinstance(good[-1], dict) or good[-1] == DONE
                        if finished:
                            span.answered()
                        heard = attempt.heard(good)
                        if heard:
                            yield heard
                    if error is not None:
                        yield span.failed(error)
                        return
        except TimeoutError:
            front.dispatcher.suspect(replica_id)
            silent = f"replica {replica_id} said nothing for {limit_s:.0f} s"
            yield span.failed(EngineError(status=504, message=silent, retryable=True))
        except LinkError as lost:
            front.dispatcher.suspect(replica_id)
            if not finished:
                yield span.failed(EngineError(status=503, message=str(lost), retryable=True))
        else:
            if not finished:
                early = "The answer ended early."
                yield span.failed(EngineError(status=500, message=early, retryable=True))
        finally:
            span.end()

    async def _place(
        self, admitted: Admitted, *, failed: Mapping[str, float], error: EngineError | None
    ) -> Slot:
        front, limit_s = admitted.front, self._limits.queue_wait_s
        if front.sleeps and front.dispatcher.ready == 0:
            limit_s = max(limit_s, self._limits.wake_wait_s)
        ask = Ask(
            priority=admitted.priority,
            tokens=admitted.request.tokens,
            work=admitted.expected.work,
            arrived_s=admitted.arrived_s,
            failed=failed,
            prefix=admitted.prefix,
        )
        try:
            with admitted.journey.waiting():
                async with asyncio.timeout(limit_s):
                    return await front.dispatcher.place(ask)
        except TimeoutError:
            if error is not None:
                raise self._gave_up(f"within {limit_s:.0f} s of a failure", error) from None
            if front.dispatcher.ready == 0:
                raise unavailable(
                    f"No replica of '{front.model_name}' became ready within {limit_s:.0f} s. "
                    "`shardwise status` shows what the service is waiting for.",
                    retry_after_s=self._stance.retry_after_s,
                ) from None
            waited = f"Waited {limit_s:.0f} s in line"
            raise self._stance.busy(waited, code="queue_timeout") from None

    def _gave_up(self, when: str, error: EngineError | None) -> ApiError:
        said = f"; the last one said: {error.message}" if error is not None else "."
        return unavailable(
            f"No replica could answer {when}{said}", retry_after_s=self._stance.retry_after_s
        )

    def _observe_first(self, admitted: Admitted) -> None:
        waited_s = self._clock() - admitted.arrived_s
        self._metrics.ttft.labels(admitted.front.pool).observe(waited_s)
        admitted.journey.first()


def _before_error(replies: list[EngineReply]) -> tuple[list[EngineReply], EngineError | None]:
    for place, reply in enumerate(replies):
        if isinstance(reply, EngineError):
            return replies[:place], reply
    return replies, None


async def _never_silent(
    messages: AsyncIterator[list[EngineReply]], *, limit_s: float
) -> AsyncGenerator[list[EngineReply], None]:
    """The messages. Raises TimeoutError if the next one takes longer than the limit."""
    while True:
        try:
            async with asyncio.timeout(limit_s):
                message = await anext(messages)
        except StopAsyncIteration:
            return
        yield message


async def _drop(waiting: asyncio.Future[Any], batches: AsyncGenerator[Any, None]) -> None:
    """End a call that is being waited for; the engine forgets it."""
    waiting.cancel()
    await asyncio.wait({waiting})
    await batches.aclose()
