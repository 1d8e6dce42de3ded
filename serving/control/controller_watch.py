"""Is the controller frozen, and who ends it so that Ray starts another?

Ray restarts a controller that is dead, not one that is alive and answers nobody. Gateways notice
that; the first in the controller's own order of them ends it, the next only if that has not helped,
so that none ends the fresh one. A controller that is dead, or on its way, is told apart: to that,
Ray answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

FROZEN_S = 10.0  # no exchange was answered
TURN_S = 15.0  # each further gateway gives those before it so long
AGAIN_S = 60.0  # after the end of one, before the end of the next

Kill = Callable[[], Awaitable[None]]

logger = logging.getLogger("ray.serve")


class ControllerWatch:
    """One gateway's eye on the controller. `kill` ends it; `clock`: seconds, any."""

    def __init__(
        self, kill: Kill, *, clock: Callable[[], float], frozen_s: float = FROZEN_S
    ) -> None:
        self._kill, self._clock, self._frozen_s = kill, clock, frozen_s
        self._place = 0
        self._silent_since_s: float | None = None
        self._killed_s = -AGAIN_S
        self._killing: asyncio.Task[None] | None = None

    def answered(self, place: int) -> None:
        """It answered; this gateway has this place among all."""
        self._place, self._silent_since_s = place, None

    def refused(self) -> None:
        """It was not reached: dead, or starting. Ray knows."""
        self._silent_since_s = None

    def silent(self, since_s: float) -> None:
        """It took a call at this time and has not answered. Ends it when that is so for long."""
        now_s = self._clock()
        if self._silent_since_s is None:
            self._silent_since_s = since_s
        silent_s = now_s - self._silent_since_s
        if silent_s < self._frozen_s + self._place * TURN_S or now_s - self._killed_s < AGAIN_S:
            return
        self._killed_s = now_s
        logger.error("the controller has answered nobody for %.0f s: it is ended", silent_s)
        self._killing = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        try:
            await self._kill()
        except Exception:
            logger.exception("the controller could not be ended")
