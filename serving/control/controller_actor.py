"""The live driver of `autoscaler.controller.step`: listen, step, act, write down.

One named Ray actor. It keeps no truth of its own: after a restart it rebuilds everything from
what Serve, gateways and replicas report. Every tick goes to the decision log, which
`shardwise replay` runs again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autoscaler.controller import ControllerState, StepResult, step
from autoscaler.decision_log import Change, Header, Record, Tick, dump
from autoscaler.forecast import prepare
from autoscaler.params import MAIN_POOL, ControllerParams, Mode
from autoscaler.reasons import Action
from autoscaler.snapshot import ClusterSnapshot, Decision, Tier
from cluster.errors import UnavailableError
from serving.control.accounting import Accounting, Seen
from serving.control.observe import FORGET_AFTER_S, Heard, in_public, requests_in_flight, snapshot
from serving.control.repairs import Repairs
from serving.control.replica_end import end_replica, this_node
from serving.control.scaler import ServeScaler
from serving.control.start_failures import StartFailures
from serving.control.workload import WorkloadBook
from serving.keeper.account import ReplicaUse, plain
from serving.keeper.keepers import KeeperSpec
from serving.keeper.keeping import keep
from serving.layout.layout_steering import LayoutSteering
from serving.layout.layouts import Layouts
from serving.messages import Directive, GatewayReport, ReplicaReport
from serving.telemetry.metric import Sample
from serving.weights.claims import Claims

RECENT_DECISIONS = 20
_FIXED = {"error": "the layout of this service cannot be changed.", "exit_code": 2}

logger = logging.getLogger("shardwise.controller")


@dataclass(frozen=True, kw_only=True)
class ControllerSpec:
    """What the controller actor needs. `deployments`: Serve deployment of each pool.

    `keeper`: None where there are no nodes to look at. `layouts`: how the main pool gets another
    one; None: it keeps its own. `half_life_s`: of what is seen of the workload. `config`: the
    serving configuration that all was brought up with, as JSON.
    """

    params: ControllerParams
    deployments: dict[str, str]
    dashboard_url: str
    app: str
    token: str | None
    log_path: str
    keeper: KeeperSpec | None = None
    layouts: Layouts | None = None
    half_life_s: float = 600.0
    config: str = ""


class ControllerActor:
    """Ray actor class. `node`: says on which node it runs."""

    def __init__(self, spec: ControllerSpec, *, node: Callable[[], str] = this_node) -> None:
        self._spec = spec
        self._params = spec.params
        self._scaler = ServeScaler(dashboard_url=spec.dashboard_url, app=spec.app, token=spec.token)
        self._repairs = Repairs(end=end_replica)
        self._start_failures = StartFailures(self._scaler.output)
        self._heard = Heard(start_failures=self._start_failures.words)
        self._layouts = None if spec.layouts is None else self._steering(spec.layouts)
        self._requests = WorkloadBook(half_life_s=spec.half_life_s)
        self._started_s = self._ticked_s = time.time()
        self._accounting = Accounting(started_s=self._started_s)
        self._node = node()
        self._claims = Claims()
        self._state = ControllerState()
        self._last: StepResult | None = None
        self._last_snapshot: ClusterSnapshot | None = None
        self._recent: list[tuple[float, Decision]] = []
        self._trouble = ""
        self._log = Path(spec.log_path)
        self._write(Header(params=self._params))
        if spec.keeper is not None:
            self._keeping = keep(
                spec.keeper, self._heard, dashboard_url=spec.dashboard_url, token=spec.token
            )
        self._ticking = asyncio.get_event_loop().create_task(self._tick_forever())

    async def observe_replica(self, report: ReplicaReport) -> None:
        """A replica's report, dated when it came: its node's clock may be off."""
        self._heard.replicas[report.replica_id] = replace(report, sent_s=time.time())

    async def exchange(self, report: GatewayReport) -> Directive:
        """A gateway's report, answered with the directive in force."""
        now_s = time.time()
        self._heard.gateways[report.gateway_id] = replace(report, sent_s=now_s)
        self._heard.forget(now_s)
        answering = self._heard.answering(now_s) if self._knows(now_s) else None
        # The silent take nothing new, but they may be asked whether they are still there.
        silent = self._heard.unheard()
        return Directive(
            sent_s=now_s,
            tier=self._last.tier if self._acting and self._last else Tier.NORMAL,
            retry_after_s=self._last.retry_after_s if self._last else 1.0,
            replicas=None if answering is None else answering + silent,
            closed=frozenset(report.replica_id for report in silent) | self._left_out,
            elsewhere=self._heard.elsewhere(report.gateway_id),
            charged=self._heard.charged(report.gateway_id),
            work={} if self._layouts is None else self._layouts.work,
            lost=frozenset(self._heard.lost),
            place=sorted(self._heard.gateways).index(report.gateway_id),
            troubles=dict(self._last.troubles) if self._last else {},
            account=self._account(now_s),
            controller_pid=os.getpid(),
            controller_node=self._node,
        )

    def _account(self, now_s: float) -> tuple[Sample, ...]:
        return self._accounting.samples(
            Seen(
                heard=self._heard,
                params=self._params,
                now_s=now_s,
                ticked_s=self._ticked_s,
                trouble=self._trouble,
                last=self._last,
                snapshot=self._last_snapshot,
            )
        )

    @property
    def _left_out(self) -> frozenset[str]:
        """Replicas that are on their way out, and finish what they have."""
        return self._last.left_out if self._acting and self._last else frozenset()

    def _knows(self, now_s: float) -> bool:
        """Whether every replica that lives has had the time to report to this controller."""
        return now_s - self._started_s > FORGET_AFTER_S or bool(self._heard.replicas)

    async def status(self) -> dict[str, Any]:
        """Everything `shardwise status` shows, as plain data."""
        last = self._last
        return {
            "now_s": time.time(),
            "started_s": self._started_s,
            "mode": self._params.mode.value,
            "tier": int(last.tier) if last else 0,
            "tier_name": (last.tier if last else Tier.NORMAL).name.lower(),
            "saturation": last.saturation if last else None,
            "retry_after_s": last.retry_after_s if last else 1,
            "trouble": self._trouble,
            "pools": [self._pool_status(pool.pool) for pool in self._params.pools],
            "replicas": [
                asdict(r) | plain(self._heard.kept.uses.get(r.replica_id, ReplicaUse()))
                for r in self._heard.replicas.values()
            ],
            "nodes": self._heard.kept.in_public(),
            "left_out": sorted(last.left_out) if last else [],
            "gateways": [in_public(gateway) for gateway in self._heard.gateways.values()],
            "decisions": [
                {"time_s": time_s, **asdict(decision)} for time_s, decision in self._recent
            ],
            "replan": self._layouts.status(self._last_snapshot) if self._layouts else None,
            "log": self._spec.log_path,
        }

    def _pool_status(self, name: str) -> dict[str, Any]:
        params = self._params.pool(name)
        seen = self._last_snapshot
        pool = next((p for p in seen.pools if p.pool == name), None) if seen else None
        load = next((item for item in seen.loads if item.pool == name), None) if seen else None
        state = self._heard.deployments.get(name)
        return {
            "pool": name,
            "minimum": params.minimum,
            "maximum": params.maximum,
            "desired": self._last.desired.get(name) if self._last else None,
            "target": pool.target if pool else None,
            "ready": pool.ready if pool else None,
            "pending": pool.pending if pool else None,
            "forecast": self._last.forecast.get(name) if self._last else None,
            "forecaster": self._last.forecasters.get(name) if self._last else None,
            "delivered": self._last.delivered.get(name) if self._last else None,
            "load": asdict(load) if load else None,
            "serve_status": state.status if state else "unknown",
            "serve_message": state.message if state else "",
            "trouble": self._last.troubles.get(name, "") if self._last else "",
            "restarts": self._accounting.restarts[name],
        }

    async def begin_move(self, plan: str, *, below_floor: bool) -> dict[str, Any]:
        """See `LayoutSteering.begin`."""
        if self._layouts is None:
            return _FIXED
        return await self._layouts.begin(plan, below_floor=below_floor)

    async def preview_move(self, plan: str, *, below_floor: bool) -> dict[str, Any]:
        """See `LayoutSteering.preview`."""
        if self._layouts is None:
            return _FIXED
        return await self._layouts.preview(plan, below_floor=below_floor)

    async def layout(self, known: int) -> dict[str, Any] | None:
        """See `LayoutSteering.layout`."""
        return None if self._layouts is None else self._layouts.layout(known)

    async def claim(self, key: str, node: str) -> bool:
        """Whether a node is the one that downloads a model; it asks again and again."""
        return self._claims.claim(key, node, now_s=time.monotonic())

    async def configuration(self) -> str:
        """The serving configuration that all was brought up with, as JSON."""
        return self._spec.config

    def _steering(self, layouts: Layouts) -> LayoutSteering:
        return LayoutSteering(
            layouts,
            deployment=self._spec.deployments[MAIN_POOL],
            app=self._spec.app,
            scaler=self._scaler,
            heard=self._heard,
            needed=lambda: None if self._last is None else self._last.desired.get(MAIN_POOL),
        )

    @property
    def _acting(self) -> bool:
        return self._params.mode is Mode.ACTIVE

    async def _tick_forever(self) -> None:
        await asyncio.to_thread(prepare, self._params.forecast.method)
        while True:
            started_s = time.time()
            try:
                await self._tick()
            except UnavailableError as error:
                # Serve did not take a new target: unacknowledged, it is asked for again.
                self._trouble = str(error)
                logger.warning("%s", error)
            except Exception as error:
                self._trouble = f"tick failed: {error!r}"
                logger.exception("tick failed")
            spent_s = time.time() - started_s
            await asyncio.sleep(max(0.1, self._params.tick_s - spent_s))

    async def _tick(self) -> None:
        try:
            states = await self._scaler.states()
        except UnavailableError as error:
            # Step all the same: what is known grows old, and old data has rules of its own.
            self._trouble = str(error)
        else:
            self._trouble = ""
            self._heard.deployments = {
                pool: states[name]
                for pool, name in self._spec.deployments.items()
                if name in states
            }
            self._heard.books = frozenset(
                replica.replica_id for state in states.values() for replica in state.replicas
            )
            self._heard.deployments_s = time.time()
            if self._layouts is not None:
                self._follow(self._layouts.see(states))
            self._start_failures.observe(self._heard.deployments)
        names = self._names()
        now_s = time.time()
        self._heard.forget(now_s)
        self._look_at_requests(now_s)
        seen = snapshot(
            self._heard,
            pools=names,
            now_s=now_s,
            workloads=self._requests.observations(names, now_s=now_s),
        )
        result = step(self._state, seen, self._params)
        self._state, self._last, self._last_snapshot = result.state, result, seen
        self._ticked_s = now_s
        self._accounting.decided(result.decisions, seen)
        self._accounting.moved(None if self._layouts is None else self._layouts.progress)
        self._write(Tick(snapshot=seen, decisions=result.decisions, tier=result.tier))
        self._recent.extend((now_s, decision) for decision in result.decisions)
        del self._recent[:-RECENT_DECISIONS]
        for decision in result.decisions:
            whom = decision.subject or decision.value
            logger.info("%s %s → %s: %s", decision.action, decision.pool, whom, decision.reason)
            if decision.action is Action.REPLAN and self._layouts is not None:
                self._layouts.drifted(decision, seen)
        if self._acting:
            await self._carry_out(result.decisions)

    async def _carry_out(self, decisions: tuple[Decision, ...]) -> None:
        for decision in decisions:  # what does not wait for Serve comes first
            if decision.action is Action.RETIRE:
                self._accounting.retired[decision.pool] += 1
            if decision.action is Action.RESTART:
                self._restart(decision)
        for decision in decisions:
            if decision.action is Action.SCALE:
                await self._scaler.scale(self._names()[decision.pool], decision.value)

    def _restart(self, decision: Decision) -> None:
        state = self._heard.deployments.get(decision.pool)
        replica = state.replica(decision.subject) if state else None
        if replica is not None:
            self._heard.lost[replica.replica_id] = time.time()
            self._accounting.restarts[decision.pool] += 1
            self._repairs.restart(replica)

    def _look_at_requests(self, now_s: float) -> None:
        self._requests.look(
            {name: gateway.served for name, gateway in self._heard.gateways.items()},
            in_flight=requests_in_flight(self._heard),
            ready={name: state.running for name, state in self._heard.deployments.items()},
            now_s=now_s,
        )

    def _names(self) -> dict[str, str]:
        """The deployment in force of each pool."""
        if self._layouts is None:
            return self._spec.deployments
        return self._spec.deployments | {MAIN_POOL: self._layouts.deployment}

    def _follow(self, params: ControllerParams | None) -> None:
        """Steer by the parameters of another layout; None: it has not changed."""
        if params is not None:
            self._params = params
            self._write(Change(params=params))

    def _write(self, record: Record) -> None:
        # Opened for each record: whatever ends this process, what was decided is on disk. A disk
        # that takes no more costs the log, never the steering.
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a", encoding="utf-8") as log:
                log.write(dump(record) + "\n")
        except OSError as error:
            self._trouble = f"the decision log cannot be written: {error}"
