"""The front door as a Ray Serve deployment: a `Service` built from the plan, and its exchange loop.

The HTTP side is `serving.http_api` behind `serving.entry`, the controller's side
`serving.exchange`; here they meet Ray.
"""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.serve.handle import DeploymentHandle

from cluster.batching import BatchRules
from cluster.engine_work import EngineWork
from cluster.model.plan import Plan, PoolSection
from cluster.model.workload import Slo
from cluster.pool_capacity import replica_limits
from cluster.pool_ledger import ReplicaLimits
from cluster.prefix_index import BLOCK_TOKENS, PrefixIndex
from cluster.priority import Priority
from cluster.waiting_line import WaitingLine
from serving import tracing
from serving.admission import PoolFront
from serving.canary import Canaries
from serving.control.controller_watch import ControllerWatch
from serving.control.replica_end import end_on_node
from serving.controller_life import is_up
from serving.direct_link import DirectLink
from serving.dispatch import Dispatcher
from serving.entry import HttpEntry
from serving.exchange import keep_in_step
from serving.http_api import build_app
from serving.journey import Journeys
from serving.keeper.mark import application_id
from serving.keys import KeyRing
from serving.loopback import bind_to_node_address
from serving.messages import Directive, GatewayReport
from serving.metrics import GatewayMetrics
from serving.request_log import open_request_log
from serving.request_texts import Texts
from serving.service import Service
from serving.settings.config import LimitsSection, ServeConfig
from serving.tokens import PromptTokenizer, torch_left_out
from serving.watch import Watch, WatchedLink

_GC_EVERY = 50_000  # allocations, instead of 700


@dataclass(frozen=True, kw_only=True)
class GatewaySpec:
    """What a gateway replica needs. `sources`: model directory or hub id per pool.

    `work`: what tokens cost on a replica, per pool.
    """

    plan: Plan
    work: dict[str, EngineWork]
    config: ServeConfig
    sources: dict[str, str]
    controller: str
    namespace: str
    link_secret: str = field(repr=False)

    @property
    def application(self) -> str:
        """What the gateways of this deployment call it; does not give the secret away."""
        return application_id(self.link_secret)


class Gateway:
    """Serve deployment class.

    `pools`: their deployments, by name. They are part of the application because the gateway names
    them; requests reach their replicas directly.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, spec: GatewaySpec, **pools: DeploymentHandle
    ) -> None:
        bind_to_node_address()
        del pools
        self._spec = spec
        self._traces = tracing.set_up("shardwise-gateway")
        self._log = open_request_log(spec.config.logs)
        watch = Watch(time.monotonic)
        metrics = GatewayMetrics(
            pools=[pool.name for pool in spec.plan.pools],
            slo=Slo(ttft_s=spec.plan.slo.ttft_s, tpot_s=spec.plan.slo.tpot_s),
        )
        with torch_left_out():
            fronts = [_front(pool, spec, watch=watch) for pool in spec.plan.pools]
        self._canaries = Canaries(
            fronts, watch=watch, metrics=metrics, after_s=spec.config.steering.faults.canary_s
        )
        self._service = Service(
            fronts=fronts,
            limits=spec.config.limits,
            metrics=metrics,
            ring=_ring(spec.config),
            journeys=Journeys(
                clock=time.time,
                tracer=self._traces.tracer,
                log=None if self._log is None else self._log.write,
                texts=Texts if spec.config.logs.prompts else None,
            ),
            long_input=spec.config.long_input,
        )
        self._controller: Any = None
        self._controller_is = (0, "")
        http = spec.config.http
        self._entry = await HttpEntry.open(
            build_app(self._service, status=self._status, application=spec.application),
            host=http.host,
            port=http.port,
            node=ray.util.get_node_ip_address(),
            application=spec.application,
        )
        self._service.address = self._entry.own_address
        # Requests leave few cycles; looking for some among all that was imported is waste.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GC_EVERY, 20, 100)
        watching = ControllerWatch(self._end_controller, clock=time.monotonic)
        self._exchanging = asyncio.create_task(
            keep_in_step(self._service, self._exchange, watch=watching)
        )
        self._asking = asyncio.create_task(self._canaries.keep())

    async def __del__(self) -> None:
        """Serve's hook before it ends a replica: the answers that were begun are finished."""
        await self._entry.close()
        self._exchanging.cancel()
        self._asking.cancel()
        self._canaries.close()
        await asyncio.to_thread(self._traces.flush)
        if self._log is not None:
            await asyncio.to_thread(self._log.close)

    async def _exchange(self, report: GatewayReport) -> Directive:
        told = replace(report, owed=self._canaries.owed())
        directive: Directive = await self._ask_controller("exchange", told)
        self._controller_is = directive.controller_pid, directive.controller_node
        return self._canaries.admit(directive)

    async def _end_controller(self) -> None:
        pid, node = self._controller_is
        # By its process: that never hits the one that comes after it.
        if not pid or not await end_on_node(pid, node_id=node, title="ray::ControllerActor"):
            await asyncio.to_thread(self._kill_controller)

    def _kill_controller(self) -> None:
        controller = ray.get_actor(self._spec.controller, namespace=self._spec.namespace)
        # One that has never been up holds its callers, too: it is slow to start, not frozen.
        if is_up(controller):
            ray.kill(controller, no_restart=False)

    async def _status(self) -> dict[str, Any]:
        status: dict[str, Any] = await self._ask_controller("status")
        return status

    async def _ask_controller(self, method: str, *arguments: object) -> Any:
        if self._controller is None:
            # In a thread: it asks Ray's head, which may be away itself.
            self._controller = await asyncio.to_thread(
                ray.get_actor, self._spec.controller, namespace=self._spec.namespace
            )
        try:
            return await getattr(self._controller, method).remote(*arguments)
        except Exception:
            self._controller = None  # it may have come back as another actor
            raise


def _front(pool: PoolSection, spec: GatewaySpec, *, watch: Watch) -> PoolFront:
    limits = spec.config.limits
    longest = pool.model.max_context
    tokenizer = PromptTokenizer.load(spec.sources[pool.name])
    held = replica_limits(pool, plan=spec.plan)
    dispatcher = Dispatcher(
        pool=pool.name,
        limits=held,
        line=waiting_line(limits),
        clock=time.time,
        batches=BatchRules(wait_s=limits.batch_wait_s, tokens=limits.batch_tokens),
        vip_slots=limits.vip_slots,
        prefixes=_prefixes(pool, held),
    )
    link = DirectLink(secret=spec.link_secret, reach_s=limits.reach_s, left=dispatcher.suspect)
    return PoolFront(
        pool=pool.name,
        model_name=pool.model.name,
        max_context=min(longest, int(pool.engine_args.get("max_model_len") or longest)),
        expected_output=spec.plan.workload.osl,
        work=spec.work[pool.name],
        dispatcher=dispatcher,
        link=WatchedLink(link, watch),
        encode=tokenizer.encode,
        decode=tokenizer.decode,
        parsed=bool(pool.engine_args.get("reasoning_parser")),
        ranks=pool.engine_args.get("scheduling_policy") == "priority",
        embeds=pool.engine_args.get("runner") == "pooling",
        sleeps=pool.replicas.minimum == 0,
    )


def _prefixes(pool: PoolSection, held: ReplicaLimits) -> PrefixIndex | None:
    """None where engines are told to cache no prefixes."""
    if pool.engine_args.get("enable_prefix_caching") is False:
        return None
    return PrefixIndex(most_blocks=int(held.max_tokens) // BLOCK_TOKENS)


def _ring(config: ServeConfig) -> KeyRing | None:
    path = config.access.keys_file
    return None if path is None else KeyRing(path)


def waiting_line(limits: LimitsSection) -> WaitingLine:
    """The line of one pool as the operator has set it."""
    return WaitingLine(
        limit=limits.max_queued,
        delays_s={
            Priority.VIP: 0.0,
            Priority.STANDARD: limits.standard_delay_s,
            Priority.BATCH: limits.batch_delay_s,
        },
    )
