"""The trace simulator's driver of `controller.step`: observe, step, act, write down.

What the live controller actor does with Ray Serve, this does with simulated pools: the same
snapshots, the same step, the same decisions and the same log; and requests are degraded by the
same `grant` as at the live gateway. Requests of a trace set no output limit and ask no logprobs;
a cap shortens those whose output would have been longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

from autoscaler.controller import ControllerState, StepResult, step
from autoscaler.decision_log import Header, Record, Tick
from autoscaler.grant import Asked, grant
from autoscaler.params import LIGHT_POOL, MAIN_POOL, ControllerParams, Mode
from autoscaler.reasons import Action
from autoscaler.snapshot import (
    ClusterSnapshot,
    Decision,
    LoadObservation,
    PoolObservation,
    ReplicaObservation,
    Tier,
    observed,
)
from cluster.sim.driver import Admission, Orders, PoolFacts
from cluster.sim.replica import SimReport
from cluster.traces.request import TraceRequest

SHED = "shed in tier 4"


class Steered:
    """A `cluster.sim.driver.Driver` that is the live controller.

    `contexts`: tokens, prompt and output, that each pool's model accepts. `output_cap`: as in
    `LimitsSection`. `write`: takes the records of the decision log, one by one.
    """

    def __init__(
        self,
        params: ControllerParams,
        *,
        contexts: Mapping[str, int],
        output_cap: int,
        write: Callable[[Record], None] | None = None,
    ) -> None:
        self._params = params
        self._contexts = contexts
        self._output_cap = output_cap
        self._write = write
        self._state = ControllerState()
        self._last: StepResult | None = None
        self._light_ready = 0
        self.decisions: list[tuple[float, Decision]] = []
        if write is not None:
            write(Header(params=params))

    @property
    def tick_s(self) -> float:
        """See `Driver`."""
        return self._params.tick_s

    @property
    def tier(self) -> Tier:
        """The tier in force."""
        acting = self._params.mode is Mode.ACTIVE
        return self._last.tier if self._last is not None and acting else Tier.NORMAL

    def admit(self, request: TraceRequest) -> Admission:
        """See `Driver`."""
        if self.tier is Tier.NORMAL:
            return Admission(MAIN_POOL, request.output_tokens)
        light = None
        if self._light_ready and self.tier >= Tier.LIGHT_MODEL:
            light = self._contexts[LIGHT_POOL] - request.prompt_tokens
        granted = grant(
            Asked(
                priority=request.priority,
                logprobs=False,
                max_tokens=None,
                room=max(1, self._contexts[MAIN_POOL] - request.prompt_tokens),
                served_by_main=True,
                light_room=light if light is not None and light > 0 else None,
            ),
            tier=self.tier,
            output_cap=self._output_cap,
        )
        output = request.output_tokens
        limit = output if granted.max_tokens is None else min(output, granted.max_tokens)
        return Admission(
            LIGHT_POOL if granted.light else MAIN_POOL,
            limit,
            changes=granted.changes,
            refused=SHED if granted.refused else "",
            output_cap=granted.max_tokens,
        )

    def tick(self, facts: Sequence[PoolFacts], now_s: float) -> Orders:
        """See `Driver`."""
        snapshot = snapshot_of(facts, now_s)
        result = step(self._state, snapshot, self._params)
        self._state, self._last = result.state, result
        self._light_ready = sum(fact.ready for fact in facts if fact.name == LIGHT_POOL)
        self.decisions.extend((now_s, decision) for decision in result.decisions)
        if self._write is not None:
            self._write(Tick(snapshot=snapshot, decisions=result.decisions, tier=result.tier))
        if self._params.mode is not Mode.ACTIVE:
            return Orders({})
        return Orders(
            {d.pool: d.value for d in result.decisions if d.action is Action.SCALE},
            [d.subject for d in result.decisions if d.action is Action.RESTART],
        )

    def gauges(self) -> Mapping[str, float]:
        """See `Driver`."""
        last = self._last
        if last is None:
            return {}
        found = {"tier": float(last.tier), "saturation": last.saturation or 0.0}
        found |= {f"{pool} forecast": value for pool, value in last.forecast.items()}
        found |= {f"{pool} measured/planned": value for pool, value in last.delivered.items()}
        found |= {f"{pool} desired": float(value) for pool, value in last.desired.items()}
        return found


def snapshot_of(facts: Sequence[PoolFacts], now_s: float) -> ClusterSnapshot:
    """What the controller may look at, as `serving.control.observe.snapshot` makes it live."""
    return ClusterSnapshot(
        now_s=now_s,
        pools=tuple(
            PoolObservation(
                pool=fact.name,
                observed_s=now_s,
                target=fact.target,
                ready=fact.ready,
                pending=max(fact.pending, fact.target - fact.ready, 0),
                replicas=tuple(_replica(report, fact) for report in fact.reports),
            )
            for fact in facts
        ),
        loads=tuple(
            LoadObservation(pool=fact.name, observed_s=now_s, **asdict(fact.traffic))
            for fact in facts
        ),
    )


def _replica(report: SimReport, fact: PoolFacts) -> ReplicaObservation:
    owed_s = fact.owed_s.get(report.replica_id, 0.0)
    return replace(observed(report), steps=report.steps, owed_s=owed_s)
