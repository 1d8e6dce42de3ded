"""How do many processes simulate on one pool of actors? Through its front, an actor that owns it.

    with local_ray(), shared_pool(requests, actors=4) as front:
        ...                                            # in any process that got the handle:
        summaries = shared_run(front)(tasks)

Whoever asks while a round is under way joins the next one, which is one `SimPool.map` of all their
tasks: nobody waits longer than for the round under way and their own, and nobody's few tasks leave
actors idle that another's could use.

A simulator actor that dies costs what it costs a pool (`sim_pool`). A front that dies takes its
actors along and starts again with new ones; Ray asks it anew for whatever was not answered.
Invariant: every call is answered once, by results in the order of its tasks or by an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from threading import Lock
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from cluster.errors import ShardwiseError, UnavailableError
from cluster.ray_backend.sim_pool import SimPool, check_connected, check_some, reason_of
from cluster.sim.task import Result, Run, SimTask
from cluster.traces.request import TraceRequest

_ASKING = 64  # calls that a front has open at once; more of them wait outside
_RESTARTS = 20  # of a front, and tries of what it was asked


@contextmanager
def shared_pool(requests: Iterable[TraceRequest], *, actors: int) -> Iterator[Any]:
    """The handle of a new pool's front. Ray must be connected, and stays so.

    Each actor takes a CPU, the front none. All are gone at the end. Raises InputError without an
    actor, UnavailableError without Ray.
    """
    check_connected()
    check_some("actors", actors)
    front = (
        ray.remote(SimPoolFront)
        .options(
            num_cpus=0,
            max_concurrency=_ASKING,
            max_restarts=_RESTARTS,
            max_task_retries=_RESTARTS,
        )
        .remote(tuple(requests), actors)
    )
    try:
        yield front
    finally:
        if ray.is_initialized():
            with suppress(RayError):  # out of reach; it ends with our connection
                ray.kill(front)


def shared_run(front: Any) -> Run:
    """`SimPool.map` on the pool of a front. It can be sent to other processes.

    Raises as `SimPool.map` does, and UnavailableError where there is no front any more.
    """
    return partial(_ask, front)


def _ask(front: Any, tasks: Sequence[SimTask]) -> list[Result]:
    try:
        return list(ray.get(front.map.remote(tuple(tasks))))
    except RayTaskError as error:
        if isinstance(error.cause, ShardwiseError):
            raise error.cause from None
        raise
    except RayError as error:
        raise UnavailableError(
            f"the shared pool of simulators does not answer: {reason_of(error)} Fix: see that the "
            "process that opened it is still running, and that its node has memory left."
        ) from error


class SimPoolFront:
    """Owns a pool. Each call has a thread; one of them at a time serves all who have asked."""

    def __init__(self, requests: Sequence[TraceRequest], actors: int) -> None:
        self._pool = SimPool(requests, actors=actors)
        self._turn = Lock()  # to use the pool
        self._door = Lock()  # to change the list
        self._asked: list[_Asked] = []

    def map(self, tasks: Sequence[SimTask]) -> list[Result]:
        """See `SimPool.map`."""
        mine = _Asked(tuple(tasks))
        with self._door:
            self._asked.append(mine)
        with self._turn:
            if not mine.answered:
                with self._door:
                    together = tuple(self._asked)
                self._serve(together)
                with self._door:
                    self._asked = [one for one in self._asked if not one.answered]
        if mine.error is not None:
            raise mine.error
        return mine.results

    def _serve(self, together: Sequence[_Asked]) -> None:
        try:
            found = iter(self._pool.map(task for one in together for task in one.tasks))
        except Exception as error:
            if len(together) > 1 and not isinstance(error, ShardwiseError):
                for one in together:  # a bug is told to whoever sent it, and to nobody else
                    self._serve([one])
                return
            for one in together:
                one.error, one.answered = error, True
        else:
            for one in together:
                one.results, one.answered = list(islice(found, len(one.tasks))), True


@dataclass(eq=False)
class _Asked:
    """What somebody asked for, and the answer once there is one."""

    tasks: tuple[SimTask, ...]
    answered: bool = False
    results: list[Result] = field(default_factory=list)
    error: Exception | None = None
