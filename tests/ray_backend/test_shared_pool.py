"""Whoever asks a shared pool is answered as by one process, whatever happens to its actors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import psutil
import pytest

ray = pytest.importorskip("ray", reason="needs the serve extra")

from cluster.errors import InputError, UnavailableError  # noqa: E402
from cluster.model.catalogue import get_model  # noqa: E402
from cluster.model.cluster_file import parse_cluster  # noqa: E402
from cluster.model.workload import Slo, Workload  # noqa: E402
from cluster.ray_backend import shared_pool as module  # noqa: E402
from cluster.ray_backend.shared_pool import SimPoolFront, shared_pool, shared_run  # noqa: E402
from cluster.ray_backend.sim_pool import local_ray  # noqa: E402
from cluster.sim.driver import Unsteered  # noqa: E402
from cluster.sim.task import Result, Run, SimTask, TaskFailed, attempt_task  # noqa: E402
from rl_search.enumeration import SpaceOptions  # noqa: E402
from rl_search.evaluator import Ints, Judged  # noqa: E402
from rl_search.goodput import Goodput, TraceFacts  # noqa: E402
from rl_search.question import Question  # noqa: E402
from rl_search.space import ActionSpace  # noqa: E402
from tests.ray_backend.test_sim_pool import TASKS, broken, wrong  # noqa: E402
from tests.sim.test_task import REQUESTS, SETUP  # noqa: E402

pytestmark = [
    pytest.mark.timeout(120),
    # Ray announces a change of how it hides accelerators.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def expected() -> list[Result]:
    return attempted(TASKS)


@pytest.fixture(scope="module")
def connected() -> Iterator[None]:
    with local_ray(cpus=3):
        yield


@pytest.fixture(scope="module")
def front(connected: None) -> Iterator[Any]:
    with shared_pool(REQUESTS, actors=2) as made:
        yield made


def processes(name: str) -> list[psutil.Process]:
    """Actors of a class in this process's Ray."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if name in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue  # it has ended meanwhile
    return found


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def held(begun: Path, go: Path) -> Unsteered:
    """Says that it is at work, and waits until it may go on."""
    begun.touch()
    until(go.exists)
    return Unsteered("main")


def ask(run: Run, tasks: Sequence[SimTask]) -> list[Result]:
    return run(tasks)


def attempted(tasks: Sequence[SimTask]) -> list[Result]:
    return [attempt_task(task, REQUESTS) for task in tasks]


def asking(front: Any, tasks: Sequence[SimTask]) -> Any:
    """Somebody else's question, from a process of its own."""
    somebody = ray.remote(ask).options(num_cpus=0, max_retries=0)
    return somebody.remote(shared_run(front), tasks)


@pytest.mark.parametrize("victim", ["SimulatorActor", "SimPoolFront"])
def test_two_who_ask_at_once_get_their_own_whoever_is_killed(
    front: Any, expected: list[Result], tmp_path: Path, victim: str
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    waits = replace(TASKS[0], driver=partial(held, begun, go))
    asked = [asking(front, [waits, *TASKS[1:20]]), asking(front, TASKS[20:])]
    until(begun.exists)
    killed = processes(victim)[0]
    killed.kill()
    go.touch()
    assert ray.get(asked, timeout=PATIENCE_S) == [expected[:20], expected[20:]]
    assert killed.pid not in {process.pid for process in processes(victim)}
    assert shared_run(front)(TASKS) == expected
    until(lambda: len(processes("SimulatorActor")) <= 2)  # a front takes its actors along


def judge(evaluator: Goodput, tried: Ints) -> Judged:
    return evaluator.judge(tried)


def test_strategies_are_judged_alike_here_and_there(front: Any) -> None:
    question = Question(
        model=get_model("llama-3.1-8b"),
        group=parse_cluster("1x2xH100").groups[0],
        workload=Workload(isl=500, osl=30),
        slo=Slo(ttft_s=1.0),
        options=SpaceOptions(batches=(8, 64), chunks=(512,)),
        headroom=0.2,
        max_model_len=4096,
    )
    space = ActionSpace.of(question)
    tried = space.sample(np.random.default_rng(0), 4)
    trace = TraceFacts.of(REQUESTS)
    there = ray.remote(judge).options(num_cpus=0, max_retries=0)
    found = ray.get(
        there.remote(Goodput(space, run=shared_run(front), trace=trace), tried),
        timeout=PATIENCE_S,
    )
    here = Goodput(space, run=attempted, trace=trace).judge(tried)
    assert np.array_equal(found.value, here.value)
    assert here.ok.any()


def test_what_fails_is_for_who_asked(front: Any, expected: list[Result]) -> None:
    run = shared_run(front)
    assert run([replace(TASKS[0], driver=wrong), TASKS[1]]) == [
        TaskFailed(message="no such driver."),
        expected[1],
    ]
    with pytest.raises(ZeroDivisionError, match="a bug"):
        run([replace(TASKS[0], driver=broken)])
    assert run(TASKS[:4]) == expected[:4]


def test_the_end_leaves_nothing(connected: None) -> None:
    with shared_pool(REQUESTS, actors=1) as front:
        assert len(shared_run(front)(TASKS[:2])) == 2
        before = len(processes("SimPoolFront"))
    until(lambda: len(processes("SimPoolFront")) == before - 1)
    with pytest.raises(UnavailableError, match=r"does not answer: .*\. Fix: see that the process"):
        shared_run(front)(TASKS[:2])


class Silent:
    """A front that has no actor."""

    def map(self, tasks: Sequence[SimTask]) -> list[Result]:
        raise UnavailableError("none of 3 started. Fix: ask for fewer.")


def test_an_error_of_the_pool_is_told_as_it_is(connected: None) -> None:
    silent = ray.remote(Silent).options(num_cpus=0).remote()
    with pytest.raises(UnavailableError) as caught:
        shared_run(silent)(TASKS[:1])
    assert str(caught.value) == "none of 3 started. Fix: ask for fewer."
    ray.kill(silent)


def test_nonsense_is_refused(connected: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="must be at least 1"), shared_pool(REQUESTS, actors=0):
        pass
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with (
        pytest.raises(UnavailableError, match="not connected to a Ray cluster"),
        shared_pool(REQUESTS, actors=1),
    ):
        pass


class Rounds:
    """A pool that tells its rounds, whose first waits, and that answers with the tasks' seeds."""

    def __init__(self, requests: Sequence[object], *, actors: int) -> None:
        self.seeds: list[list[int]] = []
        self.go = Event()

    def map(self, tasks: Iterator[SimTask]) -> list[Result]:
        given = list(tasks)
        self.seeds.append([task.seed for task in given])
        assert self.go.wait(PATIENCE_S)
        if any(task.seed < 0 for task in given):
            raise ZeroDivisionError
        if any(task.seed > 100 for task in given):
            raise UnavailableError("closed")
        return [TaskFailed(message=str(task.seed)) for task in given]


def tasks_of(*seeds: int) -> list[SimTask]:
    return [SimTask(setup=SETUP, seed=seed) for seed in seeds]


def together(
    monkeypatch: pytest.MonkeyPatch, *asked: tuple[int, ...]
) -> tuple[list[list[int]], list[Future[list[Result]]]]:
    """The rounds and answers where all but the first are asked while the first is served."""
    monkeypatch.setattr(module, "SimPool", Rounds)
    front = SimPoolFront((), 1)
    pool = front._pool
    assert isinstance(pool, Rounds)
    with ThreadPoolExecutor(len(asked)) as threads:
        found = []
        for number, seeds in enumerate(asked):
            found.append(threads.submit(front.map, tasks_of(*seeds)))
            until(lambda number=number: len(front._asked) > number)
            until(lambda: pool.seeds)
        pool.go.set()
    assert not front._asked
    return pool.seeds, found


def messages(answer: Future[list[Result]]) -> list[str]:
    return [one.message for one in answer.result() if isinstance(one, TaskFailed)]


def test_all_who_wait_are_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, found = together(monkeypatch, (1, 2), (3,), (), (4, 5, 6))
    assert rounds == [[1, 2], [3, 4, 5, 6]]
    assert [messages(one) for one in found] == [["1", "2"], ["3"], [], ["4", "5", "6"]]


def test_a_bug_is_told_to_who_sent_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, found = together(monkeypatch, (1,), (2,), (-1,), (3,))
    assert rounds == [[1], [2, -1, 3], [2], [-1], [3]]
    assert [messages(found[index]) for index in (0, 1, 3)] == [["1"], ["2"], ["3"]]
    with pytest.raises(ZeroDivisionError):
        found[2].result()


def test_a_pool_that_gives_nothing_gives_nobody_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, found = together(monkeypatch, (1,), (2,), (101,))
    assert rounds == [[1], [2, 101]]
    for one in found[1:]:
        with pytest.raises(UnavailableError, match="closed"):
            one.result()
