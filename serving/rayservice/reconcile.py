"""What must be done so that what is wanted is served? Bring it up, move it there, or nothing.

A service that runs keeps running: another plan is a move of layouts (`serving.layout`), never a
restart. Once per plan: where the controller has moved on by itself since, it is left there.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Protocol

from cluster.errors import InputError, UnavailableError
from cluster.model.plan import Plan, parse_plan
from serving.layout.succession import same_layout
from serving.rayservice.wanted import Wanted
from serving.settings.config import ServeConfig

POLL_S = 0.5
_UNDER_WAY = ("moving", "going back")

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True, kw_only=True)
class Running:
    """A service that was brought up. `config`: with what, as JSON. `failed`: it never served."""

    config: str
    failed: bool = False


class Service(Protocol):
    """The service on its Ray cluster."""

    async def running(self) -> Running | None: ...  # noqa: D102
    async def bring_up(self, wanted: Wanted) -> None: ...  # noqa: D102
    async def take_down(self) -> None: ...  # noqa: D102
    async def layout(self) -> dict[str, Any]: ...  # noqa: D102
    async def move_to(self, plan: Plan, *, below_floor: bool) -> dict[str, Any]: ...  # noqa: D102
    async def ready(self, gateways: int) -> bool: ...  # noqa: D102
    async def failure(self) -> str: ...  # noqa: D102


async def reconcile(wanted: Wanted, service: Service) -> None:
    """Return when what is wanted is served.

    Raises InputError if what runs cannot become it, UnavailableError if it does not start or a
    move to it was rolled back.
    """
    running = await service.running()
    if running is not None and running.failed:
        logger.info("what was brought up before has never served: taking it down")
        await service.take_down()
        running = None
    if running is None:
        await service.bring_up(wanted)
    else:
        _check_config(running.config, wanted.config)
        await _move(wanted, service)
    while not await service.ready(wanted.config.http.gateways):
        why = await service.failure()
        if why:
            raise UnavailableError(f"the service did not start: {why}")
        await asyncio.sleep(POLL_S)


async def _move(wanted: Wanted, service: Service) -> None:
    ordered: int | None = None
    while True:
        layout = await service.layout()
        move = layout["move"]
        if not layout["looked"] or (move is not None and move["phase"] in _UNDER_WAY):
            await asyncio.sleep(POLL_S)
            continue
        if layout["wanted"] == wanted.digest:
            return
        if ordered is not None:
            why = move["reason"] if move is not None else "the controller was started anew"
            raise UnavailableError(
                f"the move to the plan was rolled back, the old layout serves: {why}. Fix: mend "
                "the plan, or go back to the one before."
            )
        plan = wanted.resolved
        if same_layout(parse_plan(layout["plan"], source="the plan in force"), plan):
            logger.info("the plan changes nothing that runs; expectations stay as they were")
            return
        said = await service.move_to(plan, below_floor=wanted.allow_below_floor)
        if "error" in said:
            raise InputError(f"the running service cannot take the plan: {said['error']}")
        ordered = said["number"]


def _check_config(running: str, wanted: ServeConfig) -> None:
    """Raise InputError if the service runs with another configuration."""
    now = ServeConfig.model_validate_json(running)
    changed = [
        name for name in ServeConfig.model_fields if getattr(now, name) != getattr(wanted, name)
    ]
    if changed:
        raise InputError(
            f"the service runs with another serving configuration (differs in: "
            f"{', '.join(changed)}), which takes effect in a new Ray cluster only. Fix: let "
            "KubeRay roll one out (the chart does where upgrade.strategy is not None), or go back "
            "to the configuration before."
        )
