"""A gateway without Ray: scripted replicas behind the real service and HTTP application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from opentelemetry.trace import Tracer

from autoscaler.snapshot import Tier
from cluster.engine_work import by_tokens
from cluster.model.workload import Slo
from cluster.pool_ledger import ReplicaLimits
from cluster.prefix_index import PrefixIndex
from cluster.priority import Priority
from cluster.waiting_line import WaitingLine
from serving.admission import PoolFront
from serving.dispatch import Dispatcher
from serving.http_api import HttpApi, build_app
from serving.journey import Journeys
from serving.keys import KeyRing
from serving.messages import (
    Directive,
    EngineError,
    EngineReply,
    EngineRequest,
    ReplicaReport,
)
from serving.metrics import GatewayMetrics
from serving.replica_link import LinkError
from serving.request_log import RequestLine
from serving.request_texts import Texts
from serving.requests import Body, ChatBody
from serving.service import Service
from serving.settings.config import LimitsSection, LongInputSection
from serving.telemetry.metric import Sample
from serving.tracing import NO_TRACES

DELAYS_S = {Priority.VIP: 0.0, Priority.STANDARD: 30.0, Priority.BATCH: 120.0}


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def report(
    replica_id: str,
    *,
    sent_s: float,
    pool: str = "main",
    kv_usage: float = 0.0,
    waiting: int = 0,
) -> ReplicaReport:
    return ReplicaReport(
        pool=pool,
        replica_id=replica_id,
        sent_s=sent_s,
        started_s=0.0,
        pid=1,
        address="127.0.0.1:1",
        running=0,
        waiting=waiting,
        kv_usage=kv_usage,
    )


def directive(
    *replicas: ReplicaReport,
    tier: Tier = Tier.NORMAL,
    retry_after_s: float = 7.0,
    closed: frozenset[str] = frozenset(),
    lost: frozenset[str] = frozenset(),
) -> Directive:
    account = tuple(
        Sample(name="shardwise_replica_host_bytes", value=1e9, labels=(each.pool, each.replica_id))
        for each in replicas
    )
    return Directive(
        sent_s=0.0,
        tier=tier,
        retry_after_s=retry_after_s,
        replicas=replicas,
        account=account,
        closed=closed,
        lost=lost,
    )


def dispatcher(
    clock: Callable[[], float],
    *,
    pool: str = "main",
    max_requests: int = 2,
    max_tokens: float = 10_000.0,
    limit: int = 512,
) -> Dispatcher:
    return Dispatcher(
        pool=pool,
        limits=ReplicaLimits(max_requests=max_requests, max_tokens=max_tokens),
        line=WaitingLine(limit=limit, delays_s=DELAYS_S),
        clock=clock,
        draw=lambda: 0.0,
        prefixes=PrefixIndex(most_blocks=1000),
    )


Script = Callable[[EngineRequest, str], AsyncIterator[list[EngineReply]]]


def chunk(text: str) -> str:
    """A stream event's payload as vLLM writes it."""
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "big",
            "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
        }
    )


def whole(text: str) -> dict[str, Any]:
    """A response that is not streamed."""
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "big",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }


def vectors(request: EngineRequest) -> dict[str, Any]:
    """Embeddings of each input: its place, and 1."""
    asked = request.body["input"]
    count = len(asked) if isinstance(asked, list) and not isinstance(asked[0], int) else 1
    return {
        "id": "embd-1",
        "object": "list",
        "created": 1,
        "model": request.body["model"],
        "data": [
            {"index": place, "object": "embedding", "embedding": [float(place), 1.0]}
            for place in range(count)
        ],
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


def answering(*words: str) -> Script:
    """Replicas that answer with these words, one event each; or with vectors."""

    async def script(request: EngineRequest, replica_id: str) -> AsyncIterator[list[EngineReply]]:
        del replica_id
        if request.kind == "embeddings":
            yield [vectors(request)]
            return
        if not request.stream:
            yield [whole(" ".join(words))]
            return
        for word in words:
            yield [chunk(word)]
            await asyncio.sleep(0)
        yield ["[DONE]"]

    return script


@dataclass
class FakeLink:
    """A `ReplicaLink` that plays a script per replica, and remembers."""

    script: Script = field(default_factory=lambda: answering("hello", "world"))
    by_replica: dict[str, Script] = field(default_factory=dict)
    calls: list[tuple[str, EngineRequest]] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    running: int = 0

    def observe(self, reports: Iterable[ReplicaReport]) -> None:
        del reports

    def lose(self, replica_ids: Iterable[str]) -> None:
        self.lost |= set(replica_ids)

    async def call(
        self, request: EngineRequest, *, replica_id: str
    ) -> AsyncIterator[list[EngineReply]]:
        self.calls.append((replica_id, request))
        self.running += 1
        try:
            async for message in self.by_replica.get(replica_id, self.script)(request, replica_id):
                yield message
        finally:
            self.running -= 1


class Gate:
    """Replicas that answer only when the gate is open, after `before` events."""

    def __init__(self, *before: str) -> None:
        self.open = asyncio.Event()
        self.reached = asyncio.Event()
        self._before = before

    async def script(
        self, request: EngineRequest, replica_id: str
    ) -> AsyncIterator[list[EngineReply]]:
        for word in self._before:
            yield [chunk(word)]
        self.reached.set()
        await self.open.wait()
        async for message in answering("late")(request, replica_id):
            yield message


def lost_after(*words: str) -> Script:
    """A replica that is lost after these events."""

    async def script(request: EngineRequest, replica_id: str) -> AsyncIterator[list[EngineReply]]:
        del request
        for word in words:
            yield [chunk(word)]
        raise LinkError(f"replica {replica_id} was lost")

    return script


def failing(error: EngineError, *words: str) -> Script:
    """A replica whose engine fails with `error` after these events."""

    async def script(request: EngineRequest, replica_id: str) -> AsyncIterator[list[EngineReply]]:
        del request, replica_id
        yield [*(chunk(word) for word in words), error]

    return script


def count_words(body: Body) -> list[int]:
    """A tokenizer's stand-in: words of text, or the given tokens."""
    if isinstance(body, ChatBody):
        return [sum(len(str(message.content).split()) for message in body.messages)]
    prompts = body.prompt if isinstance(body.prompt, list) else [body.prompt]
    if prompts and isinstance(prompts[0], int):
        return [len(prompts)]
    return [len(p.split()) if isinstance(p, str) else len(p) for p in prompts]  # type: ignore[arg-type]


def encode_words(body: Body) -> list[list[int]]:
    """As many tokens as words."""
    return [list(range(count)) for count in count_words(body)]


def decode_words(tokens: Sequence[int]) -> str:
    """Words of a tokenizer whose odd tokens above 1000 are halves of a character."""
    return "".join("\ufffd" if token > 1000 and token % 2 else f"w{token}" for token in tokens)


@dataclass
class Stage:
    """A service over fakes: pools `main` (model "big") and, if asked for, `light` ("small")."""

    limits: LimitsSection = field(default_factory=lambda: LimitsSection(output_cap=16))
    with_light: bool = False
    max_requests: int = 2
    main_context: int = 100
    light_context: int = 100
    link: FakeLink = field(default_factory=FakeLink)
    ring: KeyRing | None = None
    tracer: Tracer = NO_TRACES.tracer
    log: Callable[[RequestLine], None] | None = None
    texts: Callable[[], Texts] | None = None
    long_input: LongInputSection = field(default_factory=LongInputSection)
    encode: Callable[[Body], list[list[int]]] = encode_words
    decode: Callable[[Sequence[int]], str] = decode_words
    embedding: Sequence[str] = ()  # pools whose models make vectors
    slo: Slo | None = None
    sleeping: Sequence[str] = ()  # pools that may have no replica

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.metrics = GatewayMetrics(
            pools=["main", "light"] if self.with_light else ["main"], slo=self.slo
        )
        pools = {"main": ("big", self.main_context)}
        if self.with_light:
            pools["light"] = ("small", self.light_context)
        self.dispatchers = {
            pool: dispatcher(
                self.clock,
                pool=pool,
                max_requests=self.max_requests,
                limit=self.limits.max_queued,
            )
            for pool in pools
        }
        self.service = Service(
            fronts=[
                PoolFront(
                    pool=pool,
                    model_name=name,
                    max_context=context,
                    expected_output=10,
                    work=by_tokens(1000.0),
                    dispatcher=self.dispatchers[pool],
                    link=self.link,
                    encode=self.encode,
                    decode=self.decode,
                    embeds=pool in self.embedding,
                    sleeps=pool in self.sleeping,
                )
                for pool, (name, context) in pools.items()
            ],
            limits=self.limits,
            metrics=self.metrics,
            ring=self.ring,
            long_input=self.long_input,
            clock=self.clock,
            journeys=Journeys(clock=self.clock, tracer=self.tracer, log=self.log, texts=self.texts),
        )

    @property
    def dispatcher(self) -> Dispatcher:
        return self.dispatchers["main"]

    def ready(
        self,
        *replicas: str,
        light: Sequence[str] = (),
        tier: Tier = Tier.NORMAL,
        queueing: Sequence[str] = (),
    ) -> None:
        """The controller says that these replicas have just reported; in some, requests wait."""
        now_s = self.clock()
        reports = [
            report(replica, sent_s=now_s, waiting=int(replica in queueing)) for replica in replicas
        ]
        reports += [report(replica, sent_s=now_s, pool="light") for replica in light]
        self.service.follow(directive(*reports, tier=tier))

    async def status(self) -> dict[str, Any]:
        """The controller's account; away unless a test says otherwise."""
        raise ConnectionError("no controller here")

    def app(self, *, application: str = "test") -> HttpApi:
        return build_app(self.service, status=self.status, application=application)

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.app(), raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://gateway")

    def value(self, name: str, **labels: str) -> float:
        """A metric's value, 0 where it has none yet."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def assert_idle(self) -> None:
        """Nothing is left of any request."""
        for dispatcher in self.dispatchers.values():
            load = dispatcher.load()
            assert load.queued_requests == 0
            assert load.queued_tokens == 0
            assert load.in_flight_tokens == 0
            assert dispatcher.in_flight() == {}
        assert self.link.running == 0


class Caller:
    """An ASGI client that can leave at any moment, and sees each event when it is sent."""

    def __init__(
        self,
        app: HttpApi,
        body: dict[str, Any],
        *,
        path: str = "/v1/chat/completions",
        key: str | None = None,
    ):
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": json.dumps(body).encode()})
        self._sent = asyncio.Event()
        self.status: int | None = None
        self.text = ""
        self.ended = False
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [
                (b"content-type", b"application/json"),
                *([] if key is None else [(b"authorization", f"Bearer {key}".encode())]),
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        self.task = asyncio.ensure_future(app(scope, self._incoming.get, self._send))

    def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def saw(self, text: str) -> None:
        async with asyncio.timeout(5):
            while text not in self.text:
                self._sent.clear()
                await self._sent.wait()

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.text += message.get("body", b"").decode()
            self.ended = not message.get("more_body", False)
        self._sent.set()


def chat(**fields: Any) -> dict[str, Any]:
    """A chat request's body."""
    return {"model": "big", "messages": [{"role": "user", "content": "one two three"}], **fields}


def events(text: str) -> list[str]:
    """Payloads of a stream."""
    return [line.removeprefix("data: ") for line in text.split("\n\n") if line]
