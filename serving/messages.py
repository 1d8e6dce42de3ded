"""What gateway, engine replicas and controller say to each other.

Times are wall-clock seconds of the sender (`time.time()`): the processes share a cluster's
clocks, and a report is stale after seconds, not microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autoscaler.snapshot import Tier
from cluster.engine_work import EngineWork
from cluster.pool_ledger import Elsewhere, ReplicaLimits
from serving.control.workload import Served
from serving.telemetry.metric import Sample
from serving.weights.spec import StartParts, WeightsSpec

Kind = Literal["chat", "completions", "embeddings"]


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """Beginnings that many prompts share: of chats (their system message), of completions."""

    system_prompts: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """Everything an engine replica needs to start: one pool's share of the plan.

    `model_source`: directory or hub id vLLM loads. `engine_args`: as `vllm serve` names them.
    `link_secret`: what a gateway has to know to be answered. `limits`: what gateways may give it.
    `weights`: how a node that lacks the model gets it; None: vLLM is left to find it.
    `generation`: number of the pool's layout, from 1.
    """

    pool: str
    model_name: str
    model_source: str
    engine_args: dict[str, Any]
    device_kind: Literal["gpu", "cpu"]
    bundles: tuple[dict[str, float], ...]
    controller: str
    namespace: str
    link_secret: str = field(repr=False)
    warmup: Warmup = Warmup()
    limits: ReplicaLimits | None = None
    weights: WeightsSpec | None = None
    generation: int = 1


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """One request as the engine gets it: an OpenAI body, already validated and within limits.

    `trace`: the span it belongs to, as W3C headers; empty without one.
    """

    kind: Kind
    body: dict[str, Any]
    request_id: str
    tokens: float  # predicted
    trace: Mapping[str, str] = field(default_factory=dict)

    @property
    def stream(self) -> bool:
        """Whether the caller wants server-sent events."""
        return bool(self.body.get("stream"))


@dataclass(frozen=True, kw_only=True)
class EngineError:
    """The engine's refusal or failure. `retryable`: another replica may do better."""

    status: int
    message: str
    retryable: bool


# A server-sent event's payload, a whole response, or an error: what travels back over a link.
EngineReply = str | dict[str, Any] | EngineError
DONE = "[DONE]"  # the payload with which OpenAI's streams end
USAGE_ALONE = (
    '"choices":[]'  # in the event that holds nothing but usage; quotes in text are escaped
)


@dataclass(frozen=True, kw_only=True)
class ReplicaReport:
    """An engine replica's own account, pushed about once a second.

    `address`: host and port at which gateways reach it. `limits`: what they may give it; None: as
    the plan they were started with says. `prompt_tokens`, `output_tokens`: that its engine has
    computed and made since its start, in so many `steps`. `start`: what starting took.
    `generation`: number of its layout.
    """

    pool: str
    replica_id: str
    sent_s: float
    started_s: float
    pid: int
    address: str
    running: int
    waiting: int
    kv_usage: float
    limits: ReplicaLimits | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    start: StartParts | None = None
    generation: int = 1
    steps: int = 0


@dataclass(frozen=True, kw_only=True)
class Owed:
    """What a replica owes one gateway.

    `owed_s`: how long it has owed a token, 0 if it owes none. `silent_s`: since its last token to
    this gateway, infinite if there was none.
    """

    owed_s: float
    silent_s: float


@dataclass(frozen=True, kw_only=True)
class PoolLoad:
    """A gateway's traffic for one pool; see `autoscaler.snapshot.LoadObservation`.

    Tokens in flight and queued count a request at least as its slot's share of a replica. Work is
    in engine-seconds, of arrivals per second.
    """

    pool: str
    arrival_tokens_per_s: float
    in_flight_tokens: float
    queued_tokens: float
    queued_requests: int
    oldest_wait_s: float
    arrival_work: float
    in_flight_work: float
    queued_work: float


@dataclass(frozen=True, kw_only=True)
class GatewayReport:
    """A gateway replica's account; the controller answers with a `Directive`.

    `address`: host and port of its own, at which no other gateway answers. `in_flight`: requests
    and predicted tokens, by replica. `charged`: requests and tokens since its start, by API key.
    `served`: what has been asked since its start, by pool. `owed`: what replicas owe it.
    """

    gateway_id: str
    address: str
    sent_s: float
    loads: tuple[PoolLoad, ...]
    in_flight: dict[str, tuple[int, float]]
    charged: dict[str, tuple[float, float]]
    served: dict[str, Served] = field(default_factory=dict)
    owed: dict[str, Owed] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Directive:
    """What the controller tells a gateway: the tier, who is ready, how long to stay away.

    `replicas` is None while the controller has just started and does not know them yet. `work`:
    what tokens cost on a replica of a pool, where it is no longer as at the gateway's start.
    `elsewhere`, `charged`: what the other gateways have in flight, and charged, by gateway.
    `closed`: replicas that take no new requests and finish those they have. `lost`: replicas that
    are being ended: whatever is on them goes to others at once. `place`: of this gateway among all,
    from 0. `troubles`: pools for which no more is asked than answers, and why. `account`: what
    gateways show of the controller in their metrics. `controller_pid`, `controller_node`: where the
    one that says this runs.
    """

    sent_s: float
    tier: Tier
    retry_after_s: float
    replicas: tuple[ReplicaReport, ...] | None
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    work: dict[str, EngineWork] = field(default_factory=dict)
    charged: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    place: int = 0
    troubles: dict[str, str] = field(default_factory=dict)
    account: tuple[Sample, ...] = ()
    controller_pid: int = 0
    controller_node: str = ""
