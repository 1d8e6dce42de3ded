"""Is the controller there? Whoever brings a service up starts it, and again when it has died.

Ray itself starts another after a process that ended, as often as it takes; it does not after an
actor whose start raised. One that could not be loaded for once would leave a service that answers
and that nobody steers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import ray
from ray._private import state as ray_state

from cluster.errors import UnavailableError
from serving.diagnosis import start_failure

STARTS = 3  # that fail in a row before `check` gives up

logger = logging.getLogger("shardwise.controller")


class ControllerLife:
    """A controller, whichever actor it is. `start` makes one; nothing here waits."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._failed = 0
        self._why = ""
        self._actor = start()
        self._ask()

    def look(self) -> bool:
        """Whether it has answered. One that has died for good is started anew."""
        answered, _ = ray.wait([self._answer], timeout=0)
        if not answered:
            return False
        try:
            ray.get(self._answer)
        except ray.exceptions.ActorUnavailableError:  # Ray starts another
            self._ask()
            return False
        except ray.exceptions.RayError as error:
            self._start_again(error)
            self._ask()
            return False
        self._failed = 0
        self._ask()
        return True

    def check(self) -> bool:
        """`look`. Raises UnavailableError, with the reason, if start after start fails."""
        answers = self.look()
        if self._failed >= STARTS:
            raise UnavailableError(
                f"the controller did not start, {self._failed} times in a row: {self._why}"
            )
        return answers

    def _start_again(self, error: ray.exceptions.RayError) -> None:
        try:
            self._actor = self._start()
        except ray.exceptions.ActorAlreadyExistsError:  # Ray has yet to forget it: at the next look
            return
        self._failed += 1
        self._why = start_failure(str(error), output="")
        logger.error("the controller has died, another is started", exc_info=error)

    def _ask(self) -> None:
        self._answer = self._actor.__ray_ready__.remote()


def is_up(actor: Any) -> bool:
    """Whether an actor has started, as Ray's head says."""
    return bool(ray_state.actors(actor._actor_id.hex()).get("State") == "ALIVE")
