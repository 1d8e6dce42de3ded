"""How do many simulations of one trace run at once? On a pool of actors, several tasks a call.

    with local_ray(), SimPool(requests) as pool:      # or: with measure.connected(address), …
        summaries = pool.map(tasks)

The trace goes to the object store once and to every actor once; a call carries tasks only. Actors
that have started get work, two calls each at most; the calls shrink towards the end, so that
nobody waits long for the last one.

An actor that dies is replaced. Of its calls only the one it was at is blamed, the others go back.
A call blamed `attempts` times is split into single tasks, and a single task blamed as often has
failed: what kills actors costs itself and nobody else. Results come in the order of the tasks.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from types import TracebackType
from typing import Any, Self

import ray
from ray.exceptions import RayError, RayTaskError

from cluster.errors import InputError, UnavailableError
from cluster.sim.task import Result, SimTask, TaskFailed, attempt_task
from cluster.traces.request import TraceRequest

_REPOSITORY = Path(__file__).resolve().parents[2]
_STORE_BYTES = 512 * 2**20
_CALLS = 2  # of an actor: the one it is at, and the next
_REASON = 200  # characters of Ray's words on a death
_SHARES = 4  # a call takes at most this part of an actor's share of what is left

Progress = Callable[[int, int], None]


@contextmanager
def local_ray(cpus: int | None = None) -> Iterator[None]:
    """A Ray of our own on this machine, with `cpus` (all by default), gone at the end."""
    if ray.is_initialized():
        raise InputError(
            "this process is connected to a Ray cluster already, and it can have only one. Fix: "
            "use the pool on that one, or disconnect first."
        )
    paths = (str(_REPOSITORY), os.environ.get("PYTHONPATH", ""))
    ray.init(
        "local",
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
        object_store_memory=_STORE_BYTES,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, paths))}},
    )
    try:
        yield
    finally:
        ray.shutdown()


class SimPool:
    """Actors that simulate tasks on `requests`. Ray must be connected, and stays so.

    `actors`: one per CPU of the cluster by default. `most`: tasks a call carries at most.
    `start_s`: how long to wait for a first actor before giving up.
    """

    def __init__(
        self,
        requests: Iterable[TraceRequest],
        *,
        actors: int | None = None,
        attempts: int = 2,
        most: int = 32,
        start_s: float = 120.0,
    ) -> None:
        check_connected()
        size = cluster_size()[1] if actors is None else actors
        for name, value in (("actors", size), ("attempts", attempts), ("tasks a call", most)):
            check_some(name, value)
        self._size, self._attempts, self._most, self._start_s = size, attempts, most, start_s
        self._trace = ray.put(tuple(requests))
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self._closed = False
        self._fill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def map(self, tasks: Iterable[SimTask], *, progress: Progress | None = None) -> list[Result]:
        """Results in the order of `tasks`. `progress` is told how many are done, of how many.

        Errors meant for users are a task's own failure; any other is a bug, and raised.
        UnavailableError where the cluster gives no actor.
        """
        if self._closed:
            raise UnavailableError("the simulator pool is closed. Fix: make a new one.")
        work = _Work(tuple(tasks), actors=self._size, most=self._most, attempts=self._attempts)
        try:
            self._failed_starts = 0
            self._fill()
            while work.left:
                self._hand_out(work)
                if self._collect(self._next(), work) and progress is not None:
                    progress(work.done, work.total)
        except BaseException:
            self._stop()  # what it is at is nobody's any more; the next map starts anew
            raise
        return work.results

    def close(self) -> None:
        """End the actors and let the trace go. Ray stays connected."""
        self._closed = True
        self._stop()
        self._trace = None

    def _fill(self) -> None:
        while len(self._workers) < self._size:
            self._workers.append(_Worker.start(self._trace))

    def _stop(self) -> None:
        workers, self._workers = self._workers, []
        if ray.is_initialized():
            for worker in workers:
                with suppress(RayError):  # out of reach; it ends with our connection
                    ray.kill(worker.actor)

    def _hand_out(self, work: _Work) -> None:
        """A call for everybody who is idle; a second one while there are enough for all."""
        started = [worker for worker in self._workers if not worker.starting]
        for places in range(_CALLS):
            for worker in started:
                if len(worker.calls) == places and len(work.waiting) > places * len(started):
                    batch = work.waiting.popleft()
                    ref = worker.actor.run.remote(work.tasks_of(batch))
                    worker.calls.append(_Call(ref, batch))

    def _next(self) -> _Worker:
        """Whose oldest call has ended. Calls of one actor end in order, unless it dies."""
        oldest = {worker.calls[0].ref: worker for worker in self._workers if worker.calls}
        simulating = any(worker.calls and not worker.starting for worker in self._workers)
        ended, _ = ray.wait(list(oldest), timeout=None if simulating else self._start_s)
        if not ended:
            raise UnavailableError(
                f"the cluster started none of {self._size} simulator actor(s) within "
                f"{self._start_s:g} s; each takes a CPU. Fix: stop what occupies the CPUs, or ask "
                "for fewer actors."
            )
        return oldest[ended[0]]

    def _collect(self, worker: _Worker, work: _Work) -> bool:
        """Take what a call has brought; whether that ends tasks."""
        call = worker.calls.popleft()
        before = work.done
        try:
            answer = ray.get(call.ref)
        except RayTaskError:
            raise
        except RayError as error:
            self._replace(worker, error, started=call.batch is not None)
            work.put_back(later.batch for later in worker.calls)
            if call.batch is not None:
                work.blame(call.batch, error)
        else:
            if call.batch is not None:
                work.finish(call.batch, answer)
            self._failed_starts = 0
        return work.done > before

    def _replace(self, worker: _Worker, error: RayError, *, started: bool) -> None:
        self._workers.remove(worker)
        ray.kill(worker.actor)  # it may be out of reach only
        if started or self._failed_starts < self._attempts:
            self._failed_starts += not started
            self._workers.append(_Worker.start(self._trace))
        elif not self._workers:
            raise UnavailableError(
                f"no simulator actor starts on the cluster: {reason_of(error)} Fix: see that the "
                "Python environment of Ray's workers has this package and its dependencies."
            ) from error


class SimulatorActor:
    """Holds the trace and simulates what it is given."""

    def __init__(self, requests: Sequence[TraceRequest]) -> None:
        self._requests = requests

    def ready(self) -> None:
        """Answers once the trace is there."""

    def run(self, tasks: Sequence[SimTask]) -> list[Result]:
        """One result a task, in order."""
        return [attempt_task(task, self._requests) for task in tasks]


@dataclass(frozen=True)
class _Batch:
    """Tasks of one call, by number, and how often that call killed its actor."""

    numbers: tuple[int, ...]
    deaths: int = 0


@dataclass(frozen=True)
class _Call:
    """A call under way; without a batch the actor is asked whether it has started."""

    ref: Any
    batch: _Batch | None


@dataclass(eq=False)
class _Worker:
    """An actor and its calls, oldest first."""

    actor: Any
    calls: deque[_Call] = field(default_factory=deque)

    @classmethod
    def start(cls, trace: Any) -> _Worker:
        actor = ray.remote(SimulatorActor).options(num_cpus=1).remote(trace)
        return cls(actor, deque([_Call(actor.ready.remote(), None)]))

    @property
    def starting(self) -> bool:
        """It has not said yet that it is there."""
        return bool(self.calls) and self.calls[0].batch is None


class _Work:
    """What is left to do of one `map`, and what came of the rest."""

    def __init__(
        self, tasks: tuple[SimTask, ...], *, actors: int, most: int, attempts: int
    ) -> None:
        self._tasks = tasks
        self._attempts = attempts
        self._found: dict[int, Result] = {}
        self.waiting = deque(_batches(len(tasks), actors=actors, most=most))

    @property
    def total(self) -> int:
        """Tasks."""
        return len(self._tasks)

    @property
    def done(self) -> int:
        """Tasks that have a result."""
        return len(self._found)

    @property
    def left(self) -> int:
        """Tasks that have none."""
        return self.total - self.done

    @property
    def results(self) -> list[Result]:
        """All of them, once nothing is left."""
        return [self._found[number] for number in range(self.total)]

    def tasks_of(self, batch: _Batch) -> tuple[SimTask, ...]:
        """What a call carries."""
        return tuple(self._tasks[number] for number in batch.numbers)

    def finish(self, batch: _Batch, results: Sequence[Result]) -> None:
        """A call has brought its results."""
        self._found.update(zip(batch.numbers, results, strict=True))

    def put_back(self, batches: Iterable[_Batch | None]) -> None:
        """Calls that were lost through no fault of theirs."""
        self.waiting.extendleft(reversed([batch for batch in batches if batch is not None]))

    def blame(self, batch: _Batch, error: RayError) -> None:
        """A call has killed its actor: once more, split, or failed."""
        deaths = batch.deaths + 1
        if deaths < self._attempts:
            self.waiting.appendleft(_Batch(batch.numbers, deaths))
        elif len(batch.numbers) > 1:
            self.waiting.extendleft(_Batch((number,)) for number in reversed(batch.numbers))
        else:
            message = (
                f"the process that ran it died, {deaths} time(s) of {self._attempts}. "
                f"{reason_of(error)} Fix: give it more memory; if it dies with that too, its "
                "driver or the simulator crashes."
            )
            self._found[batch.numbers[0]] = TaskFailed(message=message)


def _batches(total: int, *, actors: int, most: int) -> Iterator[_Batch]:
    """Guided self-scheduling (Polychronopoulos and Kuck 1987): large calls first, then smaller."""
    begin = 0
    while begin < total:
        size = min(most, max(1, (total - begin) // (_SHARES * actors)))
        yield _Batch(tuple(range(begin, begin + size)))
        begin += size


def cluster_size() -> tuple[int, int]:
    """Nodes and CPUs of the cluster this process is connected to."""
    nodes = sum(bool(node["Alive"]) for node in ray.nodes())
    return nodes, max(1, int(ray.cluster_resources().get("CPU", 0)))


def check_connected() -> None:
    """Raise UnavailableError without Ray."""
    if not ray.is_initialized():
        raise UnavailableError(
            "not connected to a Ray cluster, so there is none to simulate on. Fix: connect to "
            "one (--address), or start one on this machine."
        )


def check_some(name: str, value: int) -> None:
    """Raise InputError for less than 1."""
    if value < 1:
        raise InputError(f"a simulator pool with {value} {name}; there must be at least 1.")


def reason_of(error: RayError) -> str:
    """The last of Ray's words, which tell the cause, in one short line ended by a full stop."""
    last = str(error).strip().rpartition("\n")[2]
    return shorten(last.rstrip("."), _REASON, placeholder=" …") + "."
