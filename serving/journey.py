"""What has become of one request? Told step by step, for its trace and for its line in the log.

    request                     child of the caller's span, if it sent one
    ├─ admission                parse, tokenise, tier
    ├─ queue                    waiting in line, once before each attempt but those moved to
    └─ attempt                  one replica's; its engine's span, and vLLM's, are below it

Where nothing is traced the spans are OpenTelemetry's no-ops; a caller's trace is passed on to the
engine and is in the log all the same.

Invariant: no span outlives its request, and the request is told to the log once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from opentelemetry.context import Context
from opentelemetry.trace import (
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    format_span_id,
    format_trace_id,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue
from starlette.datastructures import Headers

from serving import span_names as names
from serving.access import Caller
from serving.errors import ApiError
from serving.messages import USAGE_ALONE, EngineError, EngineReply
from serving.metering import Meter
from serving.request_log import RequestLine
from serving.request_texts import Texts
from serving.requests import Body, BodyKind
from serving.slo import Ended, Finish
from serving.tracing import NO_TRACES, carried, context_of, tell_failure
from serving.transcript import Transcript

_NO_STEP = nullcontext()
CALLER_LEFT = 499  # nginx's status for a caller that left before the answer

Again = Literal["retry", "move", "resume"]


@dataclass(frozen=True, kw_only=True)
class Journeys:
    """Where journeys are told. `log`: takes the line of each request that has ended.

    `texts`: makes what keeps prompt and answer for the line, None where they are not to be there.
    """

    clock: Callable[[], float]
    tracer: Tracer = NO_TRACES.tracer
    log: Callable[[RequestLine], None] | None = None
    texts: Callable[[], Texts] | None = None

    def begin(self, kind: BodyKind, *, path: str, headers: Headers, request_id: str) -> Journey:
        """A request has come."""
        operation = names.OPERATIONS[kind.kind]
        span = self.tracer.start_span(
            operation,
            context=context_of(headers),
            kind=SpanKind.SERVER,
            attributes={
                names.OPERATION: operation,
                names.PROVIDER: "shardwise",
                names.HTTP_METHOD: "POST",
                names.HTTP_ROUTE: path,
                names.REQUEST_ID: request_id,
            },
        )
        return Journey(self, span, operation=operation, request_id=request_id)


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What the request may have, where, and who counts what it uses."""

    pool: str
    model: str
    tier: int
    changes: tuple[str, ...]
    max_tokens: int | None
    meter: Meter | None
    transcript: Transcript | None


class Journey:
    """One request's."""

    def __init__(self, to: Journeys, span: Span, *, operation: str, request_id: str) -> None:
        self._to, self._span = to, span
        self._operation, self._request_id = operation, request_id
        self._arrived_s = to.clock()
        self._texts = None if to.texts is None else to.texts()
        self._caller: Caller | None = None
        self._stream: bool | None = None
        self._model: str | None = None
        self._pool: str | None = None
        self._prompt_tokens: int | None = None
        self._grant: Grant | None = None
        self._usage: dict[str, Any] | None = None
        self._queue_s: float | None = None
        self._ttft_s: float | None = None
        self._error: str | None = None
        self._replicas: list[str] = []
        self._again: list[Again] = []

    def entered(self, caller: Caller) -> None:
        """It is known who asks."""
        self._caller = caller
        self._span.set_attribute(names.PRIORITY, caller.priority.value)
        if caller.key is not None:
            self._span.set_attribute(names.KEY, caller.key.name)

    def admission(self) -> AbstractContextManager[None]:
        """While it is checked and fitted to the tier."""
        return self._step("admission")

    def asked(self, body: Body, *, model: str, pool: str) -> None:
        """The body is a request for this model."""
        self._stream, self._model, self._pool = bool(body.stream), model, pool
        if self._texts is not None:
            self._texts.asked(body)
        self._span.update_name(f"{self._operation} {model}")
        self._span.set_attributes(
            {names.REQUEST_MODEL: model, names.REQUEST_STREAM: self._stream, names.POOL: pool}
        )

    def tokenised(self, prompt_tokens: int) -> None:
        """The prompt has been counted."""
        self._prompt_tokens = prompt_tokens
        self._span.add_event(names.TOKENISED)

    def granted(self, grant: Grant) -> None:
        """It may be served."""
        self._grant = grant
        self._model, self._pool = grant.model, grant.pool
        self._span.set_attributes(
            {names.POOL: grant.pool, names.RESPONSE_MODEL: grant.model, names.TIER: grant.tier}
        )
        if grant.changes:
            self._span.set_attribute(names.CHANGES, grant.changes)
        if grant.max_tokens is not None:
            self._span.set_attribute(names.REQUEST_MAX_TOKENS, grant.max_tokens)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While it waits in line."""
        began_s = self._to.clock()
        try:
            with self._step("queue"):
                yield
        finally:
            self._queue_s = (self._queue_s or 0.0) + self._to.clock() - began_s

    def again(self, why: Again) -> None:
        """It is about to be tried on another replica."""
        self._again.append(why)
        self._span.add_event(why, {names.REPLICA: self._replicas[-1]})

    def attempt(self, replica_id: str, *, engine_request_id: str) -> AttemptSpan:
        """A replica is asked. `end` the attempt, whatever comes of it."""
        tried = len(self._replicas)
        self._replicas.append(replica_id)
        span = self._child("attempt", kind=SpanKind.CLIENT)
        span.set_attributes(
            {
                names.REPLICA: replica_id,
                names.ATTEMPT: tried + 1,
                names.REASON: self._again[-1] if tried else "first",
                names.ENGINE_REQUEST_ID: engine_request_id,
            }
        )
        return AttemptSpan(span)

    def first(self) -> None:
        """The first reply has come."""
        if self._ttft_s is None:
            self._ttft_s = self._to.clock() - self._arrived_s
            self._span.add_event(names.FIRST_TOKEN)

    @property
    def engine_times_s(self) -> tuple[float, float] | None:
        """From being placed to the first reply, and from there to now; None before that."""
        if self._ttft_s is None:
            return None
        since_s = self._to.clock() - self._arrived_s - self._ttft_s
        return max(0.0, self._ttft_s - (self._queue_s or 0.0)), since_s

    def sent(self, replies: Sequence[EngineReply]) -> None:
        """These go to the caller."""
        for reply in replies:
            if isinstance(reply, EngineError):
                self._error = "engine_error"
            elif isinstance(reply, dict):
                self._usage = reply.get("usage")
            elif USAGE_ALONE in reply:
                self._usage = json.loads(reply).get("usage")
        if self._texts is not None:
            self._texts.answered(replies)

    def streamed(self) -> None:
        """The last of a stream has gone to the caller."""
        self._span.add_event(names.STREAM_END)

    def refused(self, error: ApiError) -> None:
        """It is answered with an error."""
        self._error = error.code or "internal_error"

    def end(self, *, status: int, tier: int) -> Ended:
        """It is over. `status`: as the metrics count it; `tier`: in force, where none was granted.

        Call once.
        """
        duration_s = self._to.clock() - self._arrived_s
        finish = self._finish(status)
        self._end_span(status, finish)
        if self._to.log is not None:
            self._to.log(self._line(status, finish, tier=tier, duration_s=duration_s))
        return Ended(
            pool=self._pool,
            status=status,
            finish=finish,
            stream=bool(self._stream),
            ttft_s=self._ttft_s,
            duration_s=duration_s,
            output_tokens=self._output(),
        )

    def _finish(self, status: int) -> Finish:
        if status == CALLER_LEFT:
            return "cancelled"
        return "completed" if self._error is None and status < 400 else "error"

    def _end_span(self, status: int, finish: Finish) -> None:
        span = self._span
        if span.is_recording():
            span.set_attribute(names.OUTCOME, finish)
            if finish != "cancelled":
                span.set_attribute(names.HTTP_STATUS, status)
            if self._ttft_s is not None:
                span.set_attribute(names.FIRST_CHUNK_S, self._ttft_s)
            for name, tokens in (
                (names.INPUT_TOKENS, self._input()),
                (names.OUTPUT_TOKENS, self._output()),
            ):
                if tokens is not None:
                    span.set_attribute(name, tokens)
            if finish == "error":
                span.set_attribute(names.ERROR_TYPE, self._error or str(status))
                if not 400 <= status < 500:  # those are the caller's own, says the convention
                    span.set_status(StatusCode.ERROR)
        span.end()

    def _line(self, status: int, finish: Finish, *, tier: int, duration_s: float) -> RequestLine:
        grant, caller = self._grant, self._caller
        context = self._span.get_span_context()
        key = None if caller is None or caller.key is None else caller.key.name
        return RequestLine(
            time=datetime.fromtimestamp(self._to.clock(), UTC).isoformat(timespec="milliseconds"),
            request_id=self._request_id,
            trace_id=format_trace_id(context.trace_id) if context.is_valid else None,
            span_id=format_span_id(context.span_id) if context.is_valid else None,
            operation=self._operation,
            key=key,
            priority=None if caller is None else caller.priority.value,
            model=self._model,
            pool=self._pool,
            tier=tier if grant is None else grant.tier,
            changes=() if grant is None else grant.changes,
            stream=self._stream,
            status=status,
            finish=finish,
            error=self._error,
            prompt_tokens=self._input(),
            output_tokens=self._output(),
            queue_s=_rounded(self._queue_s),
            ttft_s=_rounded(self._ttft_s),
            duration_s=round(duration_s, 6),
            attempts=len(self._replicas),
            retries=self._again.count("retry"),
            moves=self._again.count("move"),
            resumes=self._again.count("resume"),
            replicas=tuple(self._replicas),
            texts=self._texts,
        )

    def _input(self) -> int | None:
        used = self._used("prompt_tokens")
        return self._prompt_tokens if used is None else used

    def _output(self) -> int | None:
        """As the engine says, or as many token ids as it has told; not guessed from events."""
        used = self._used("completion_tokens")
        said = None if self._grant is None else self._grant.transcript
        if used is None and said is not None and said.prompt:
            return len(said.tokens)
        return used

    def _used(self, what: str) -> int | None:
        usage = self._usage
        if usage is None and self._grant is not None and self._grant.meter is not None:
            usage = self._grant.meter.usage
        return None if usage is None or usage.get(what) is None else int(usage[what])

    def _step(self, name: str) -> AbstractContextManager[None]:
        return _Step(self._child(name)) if self._span.is_recording() else _NO_STEP

    def _child(self, name: str, *, kind: SpanKind = SpanKind.INTERNAL) -> Span:
        """A span below the request's; that itself, which does nothing, where it is not recorded."""
        if not self._span.is_recording():
            return self._span
        context = set_span_in_context(self._span, Context())
        return self._to.tracer.start_span(name, context=context, kind=kind)


class _Step(AbstractContextManager[None]):
    """A span that ends with the block, and says how."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            tell_failure(self._span, error)
        self._span.end()


class AttemptSpan:
    """One attempt's."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._outcome: Mapping[str, AttributeValue] = {names.OUTCOME: "cancelled"}

    @property
    def headers(self) -> Mapping[str, str]:
        """What the replica needs to join the trace."""
        return carried(self._span)

    def answered(self) -> None:
        """The replica has said everything."""
        self._outcome = {names.OUTCOME: "completed"}

    def failed(self, error: EngineError) -> EngineError:
        """The replica has failed, or was lost. Returns the error."""
        self._outcome = {names.OUTCOME: "error", names.ERROR_TYPE: str(error.status)}
        self._span.set_status(StatusCode.ERROR)
        return error

    def end(self) -> None:
        """It is over; without an outcome it was cancelled, or moved elsewhere."""
        self._span.set_attributes(self._outcome)
        self._span.end()


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
