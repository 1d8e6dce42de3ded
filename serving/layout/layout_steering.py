"""The layout's part of the controller: orders and drift lead to moves, and all can be asked about.

Joins who keeps the layout (`serving.layout.layout_keeper`) and who looks for a better one
(`serving.layout.replanner`).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any

from autoscaler.drift import ratios
from autoscaler.params import MAIN_POOL, ControllerParams
from autoscaler.snapshot import ClusterSnapshot, Decision, WorkloadObservation
from cluster.engine_work import EngineWork
from cluster.errors import ShardwiseError
from cluster.model.plan import Plan, parse_plan
from cluster.planned_work import planned_work
from serving.control.observe import Heard
from serving.control.scaler import DeploymentState, ServeScaler
from serving.layout.generations import digest
from serving.layout.layout_keeper import LayoutKeeper, layout_in_words
from serving.layout.layouts import Layouts, MoveProgress
from serving.layout.replan_search import search_apart
from serving.layout.replanner import Replanner


class LayoutSteering:
    """`needed`: replicas of the layout in force that the load needs now, None if nobody knows."""

    def __init__(
        self,
        layouts: Layouts,
        *,
        deployment: str,
        app: str,
        scaler: ServeScaler,
        heard: Heard,
        needed: Callable[[], int | None],
    ) -> None:
        self._needed = needed
        self._keeper = LayoutKeeper(
            layouts, deployment=deployment, app=app, scaler=scaler, heard=heard
        )
        self._known = self._keeper.current.number
        section = layouts.steering.replan
        acts = section.mode == "act" and layouts.steering.mode == "active"
        self._replanner = Replanner(
            section,
            search=partial(search_apart, budget_s=section.budget_s),
            move_to=self._move_to if acts else None,
        )

    @property
    def deployment(self) -> str:
        """Of the generation in force, as Serve names it."""
        return self._keeper.current.name

    @property
    def work(self) -> dict[str, EngineWork]:
        """What tokens cost on a replica, where gateways do not know it from their own plan."""
        plan = self._keeper.current.plan
        return {} if self._keeper.current.order is None else {MAIN_POOL: _work(plan.dumps())}

    @property
    def progress(self) -> MoveProgress | None:
        """Of the last move."""
        return self._keeper.progress

    def see(self, states: Mapping[str, DeploymentState]) -> ControllerParams | None:
        """Serve's states at a tick; parameters to steer by from now on, None: as before."""
        self._keeper.see(states)
        if self._keeper.current.number == self._known:
            return None
        self._known = self._keeper.current.number
        return self._keeper.params

    def drifted(self, proposal: Decision, snapshot: ClusterSnapshot) -> None:
        """Look for a better layout; does not wait for it."""
        seen = _seen(snapshot)
        if seen is not None:
            self._replanner.begin(self._keeper.current.plan, seen, reason=proposal.reason)

    async def begin(self, plan: str, *, below_floor: bool) -> dict[str, Any]:
        """Begin a move to a plan (its text): its steps in words and its number, or the error."""
        said = await self._said(self._ordered, plan, below_floor=below_floor)
        progress = self._keeper.progress
        return said if progress is None else {**said, "number": progress.number}

    async def preview(self, plan: str, *, below_floor: bool) -> dict[str, Any]:
        """The steps of such a move in words, or the error."""
        return await self._said(self._keeper.preview, plan, below_floor=below_floor)

    def layout(self, known: int) -> dict[str, Any]:
        """The layout in force: its number, its plan's text unless it is `known`; and the move.

        `wanted`: digest of the plan that the operator gave last. `looked`: whether Serve has said
        all this; before that it is what the service was brought up with.
        """
        current = self._keeper.current
        return {
            "looked": self._keeper.looked,
            "wanted": current.wanted,
            "number": current.number,
            "plan": None if current.number == known else current.plan.dumps(),
            "move": self._move(),
        }

    def status(self, snapshot: ClusterSnapshot | None) -> dict[str, Any]:
        """What `shardwise status` and `shardwise replan` show."""
        params = self._keeper.params.replan
        seen = None if snapshot is None else _seen(snapshot)
        proposal = self._replanner.proposal
        return {
            "layouts": {
                pool.name: layout_in_words(pool) for pool in self._keeper.current.plan.pools
            },
            "mode": params.mode.value,
            "planned": asdict(params.planned),
            "seen": None if seen is None else _finite(asdict(seen)),
            "ratios": {} if seen is None else ratios(seen, params),
            "band": params.band,
            "min_requests": params.min_requests,
            "searching": self._replanner.searching,
            "proposal": None if proposal is None else proposal.told(),
            "move": self._move(),
        }

    async def _move_to(self, plan: Plan) -> None:
        await self._keeper.order(plan, below_floor=False, needed=self._needed())

    async def _ordered(self, plan: Plan, *, below_floor: bool, needed: int | None) -> list[str]:
        return await self._keeper.order(
            plan, below_floor=below_floor, needed=needed, wanted=digest(plan)
        )

    async def _said(
        self, ask: Callable[..., Awaitable[list[str]]], plan: str, *, below_floor: bool
    ) -> dict[str, Any]:
        try:
            read = parse_plan(plan, source="the plan")
            return {"steps": await ask(read, below_floor=below_floor, needed=self._needed())}
        except ShardwiseError as error:
            return {"error": str(error), "exit_code": error.exit_code}

    def _move(self) -> dict[str, Any] | None:
        progress = self._keeper.progress
        return None if progress is None else asdict(progress)


@lru_cache(maxsize=2)
def _work(plan: str) -> EngineWork:
    """Asked for with every directive, and worth some milliseconds."""
    read = parse_plan(plan, source="the plan in force")
    return planned_work(read.main, plan=read)


def _seen(snapshot: ClusterSnapshot) -> WorkloadObservation | None:
    return next((item for item in snapshot.workloads if item.pool == MAIN_POOL), None)


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: what is not known is null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
