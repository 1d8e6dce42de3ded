"""Which layout does the main pool have, and is it on its way to another? The controller's part.

At its first look at Serve it finds the generation in force and, where a move was under way when the
controller ended, goes on with it: what was proven is proven again. From then on the generation in
force changes only when a move is done. One move at a time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoscaler.moves import Goal, Unit
from autoscaler.params import MAIN_POOL, ControllerParams
from cluster.errors import InputError
from cluster.model.plan import Plan, PoolSection
from serving.control.observe import Heard, Moving
from serving.control.scaler import DeploymentState, ServeScaler
from serving.layout.generations import Generation, Order, following, standing
from serving.layout.growth import Growth
from serving.layout.layouts import Layouts, MoveProgress, Phase
from serving.layout.move_ground import Ground, MoveFailedError, Patience
from serving.layout.mover import Mover
from serving.layout.proof import first_answer
from serving.layout.succession import successor
from serving.messages import ReplicaReport
from serving.settings.steering_config import controller_params

logger = logging.getLogger("shardwise.controller")


@dataclass(frozen=True, kw_only=True)
class _Move:
    old: Generation
    new: Generation
    mover: Mover
    task: asyncio.Task[None]


class LayoutKeeper:
    """`deployment`: the main pool's first, as Serve names it; `app`: its application."""

    def __init__(
        self, layouts: Layouts, *, deployment: str, app: str, scaler: ServeScaler, heard: Heard
    ) -> None:
        self._layouts, self._app, self._scaler, self._heard = layouts, app, scaler, heard
        self._first = Generation(pool=MAIN_POOL, number=1, name=deployment, plan=layouts.plan)
        self.current = self._first
        self._last = self._first.number
        self._looked = False
        self._move: _Move | None = None
        self.progress: MoveProgress | None = None

    @property
    def params(self) -> ControllerParams:
        """Steering parameters of the layout in force."""
        return controller_params(self.current.plan, self._layouts.steering)

    def see(self, states: Mapping[str, DeploymentState]) -> None:
        """Serve's states at a tick: what is heard of the pool is of the generation in force."""
        if not self._looked:
            self._looked = self._find(states)
        if self.current.name in states:
            self._heard.deployments = {
                **self._heard.deployments,
                MAIN_POOL: states[self.current.name],
            }
        self._heard.moving = {} if self._move is None else self._moving(self._move, states)

    @property
    def looked(self) -> bool:
        """Whether it knows by Serve which generation is in force."""
        return self._looked

    async def order(
        self, plan: Plan, *, below_floor: bool, needed: int | None, wanted: str | None = None
    ) -> list[str]:
        """Begin a move to `plan`; returns its steps in words.

        `needed`: replicas of the layout in force that the load needs now, None if nobody knows.
        `wanted`: digest of what the operator gave, None where nobody did: it is as it was.
        Raises InputError if the plan cannot take over, or if there is no way to it.
        """
        steps, new, mover = await self._prepared(
            plan, below_floor=below_floor, needed=needed, wanted=wanted
        )
        self._begin(self.current, new, mover)
        return steps

    async def preview(self, plan: Plan, *, below_floor: bool, needed: int | None) -> list[str]:
        """The steps of such a move, which is not begun. Raises InputError."""
        steps, _, _ = await self._prepared(plan, below_floor=below_floor, needed=needed)
        return steps

    async def _prepared(
        self, plan: Plan, *, below_floor: bool, needed: int | None, wanted: str | None = None
    ) -> tuple[list[str], Generation, Mover]:
        self._check_free()
        plan = successor(self.current.plan, plan)
        mover, new = await self._mover(plan, below_floor=below_floor, needed=needed, wanted=wanted)
        try:
            steps = await mover.preview()
        except MoveFailedError as error:
            raise InputError(
                f"there is no way to the new layout: {error}. Fix: free devices or add some, allow "
                "more replicas in the plan, or accept a gap in which requests wait in line with "
                "--allow-below-floor."
            ) from error
        self._check_free()  # others may have ordered meanwhile
        return steps, new, mover

    def _check_free(self) -> None:
        if self._move is not None:
            raise InputError("a move is under way already. Fix: wait for its end (`status`).")

    def _find(self, states: Mapping[str, DeploymentState]) -> bool:
        """Returns whether Serve has said what every generation is."""
        found = standing(self._first, states)
        self.current, self._last = found.current, found.last
        if found.successor is None or not found.whole:
            return found.whole
        order = found.successor.order
        assert order is not None
        mover = self._mover_of(found.current, found.successor, order)
        logger.info("a move to %s was under way: going on", found.successor.name)
        self._begin(found.current, found.successor, mover)
        return True

    async def _mover(
        self, plan: Plan, *, below_floor: bool, needed: int | None, wanted: str | None
    ) -> tuple[Mover, Generation]:
        states = await self._scaler.states()
        now = states.get(self.current.name)
        if now is None:
            raise InputError("Serve does not know the pool that is to move. Fix: try again.")
        self._last = max(self._last, standing(self._first, states).last)
        old, new = self._unit(self.current.plan), self._unit(plan)
        floor = max(self.current.plan.main.replicas.minimum, min(needed or 0, now.target))
        bounds = plan.main.replicas
        enough = max(bounds.initial, math.ceil(floor * old.capacity / new.capacity - 1e-9))
        order = Order(
            replicas=max(1, min(enough, bounds.maximum)),
            restore=now.target,
            floor=floor * old.capacity,
            below_floor=below_floor,
            wanted=self.current.wanted if wanted is None else wanted,
        )
        generation = following(
            self.current, number=self._last + 1, app=self._app, plan=plan, order=order
        )
        return self._mover_of(self.current, generation, order), generation

    def _mover_of(self, old: Generation, new: Generation, order: Order) -> Mover:
        steering = self._layouts.steering

        async def prove(report: ReplicaReport) -> str:
            return await first_answer(
                new.plan.main,
                report,
                secret=self._layouts.link_secret,
                limit_s=steering.replan.canary_s,
            )

        return Mover(
            old=old,
            new=new,
            goal=Goal(
                old=self._unit(old.plan),
                new=self._unit(new.plan),
                replicas=order.replicas,
                floor=order.floor,
                below_floor=order.below_floor,
            ),
            order=order,
            ground=Ground(
                scaler=self._scaler,
                apps=self._layouts.apps,
                reports=lambda: self._heard.replicas,
                patience=Patience(
                    start_s=steering.replan.start_limit_s, stop_s=steering.replan.stop_limit_s
                ),
            ),
            growth=Growth(self._layouts.nodes, limit_s=steering.keeper.node_timeout_s),
            prove=prove,
            tell=self._tell,
        )

    def _begin(self, old: Generation, new: Generation, mover: Mover) -> None:
        order = new.order
        assert order is not None
        self._last = new.number
        self.progress = MoveProgress(
            number=new.number,
            phase="moving",
            old=f"{layout_in_words(old.plan.main)} x{order.restore}",
            new=f"{layout_in_words(new.plan.main)} x{order.replicas}",
            doing="beginning",
        )
        task = asyncio.get_running_loop().create_task(self._carry_out(new, mover))
        self._move = _Move(old=old, new=new, mover=mover, task=task)

    async def _carry_out(self, new: Generation, mover: Mover) -> None:
        try:
            await mover.there()
        except Exception as error:
            if not isinstance(error, MoveFailedError):
                logger.exception("the move failed")
            await self._go_back(mover, reason=str(error) or repr(error))
        else:
            self.current = new
            self._end("done", f"{layout_in_words(new.plan.main)} serves")
        finally:
            self._move = None

    async def _go_back(self, mover: Mover, *, reason: str) -> None:
        assert self.progress is not None
        self.progress = replace(self.progress, phase="going back", reason=reason)
        self._tell(f"going back: {reason}")
        try:
            await mover.back()
        except Exception as error:
            logger.exception("the way back failed")
            self._end("rolled back", f"the way back is not finished: {error!r}")
        else:
            self._end("rolled back", "the old layout serves as before")

    def _tell(self, doing: str) -> None:
        assert self.progress is not None
        logger.info("move %d: %s", self.progress.number, doing)
        steps = (*self.progress.steps, (time.time(), doing))
        self.progress = replace(self.progress, doing=doing, steps=steps)

    def _end(self, phase: Phase, doing: str) -> None:
        self._tell(doing)
        assert self.progress is not None
        self.progress = replace(self.progress, phase=phase)

    def _moving(self, move: _Move, states: Mapping[str, DeploymentState]) -> dict[str, Moving]:
        state = states.get(move.new.name)
        answering = (frozenset() if state is None else state.answering) & move.mover.proven
        worth = self._unit(move.new.plan).capacity / self._unit(move.old.plan).capacity
        return {
            MAIN_POOL: Moving(
                number=move.new.number,
                answering=answering,
                worth=math.ceil(len(answering) * worth),
                why=f"it moves to {layout_in_words(move.new.plan.main)}",
            )
        }

    def _unit(self, plan: Plan) -> Unit:
        params = controller_params(plan, self._layouts.steering)
        return Unit(
            devices=plan.main.layout.to_layout(replicas=1).devices_per_replica,
            capacity=params.main.capacity_tokens_per_s,
        )


def layout_in_words(pool: PoolSection) -> str:
    """Of one replica, e.g. `TP2 PP1`."""
    return pool.layout.to_layout(replicas=1).describe().removesuffix(" x1")
