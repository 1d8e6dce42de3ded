"""A pool of simulators gives what one process would, whatever happens to its actors."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import psutil
import pytest

ray = pytest.importorskip("ray", reason="needs the serve extra")

from cluster.errors import InputError, UnavailableError  # noqa: E402
from cluster.ray_backend.sim_pool import SimPool, local_ray  # noqa: E402
from cluster.sim.driver import Unsteered  # noqa: E402
from cluster.sim.setup import Setup  # noqa: E402
from cluster.sim.task import SimTask, Summary, TaskFailed, run_task  # noqa: E402
from cluster.traces.request import TraceRequest  # noqa: E402
from tests.sim.test_task import POOL, REQUESTS, SETUP, one_more  # noqa: E402

pytestmark = [
    pytest.mark.timeout(120),
    # Ray announces a change of how it hides accelerators.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

TASKS = [
    SimTask(setup=Setup(pools=(replace(POOL, replicas=1 + seed % 3),), slo=SETUP.slo), seed=seed)
    for seed in range(40)
]


@pytest.fixture(scope="module")
def expected() -> list[Summary]:
    return [run_task(task, REQUESTS) for task in TASKS]


@pytest.fixture(scope="module")
def connected() -> Iterator[None]:
    with local_ray(cpus=2):
        yield


@pytest.fixture(scope="module")
def pool(connected: None) -> Iterator[SimPool]:
    with SimPool(REQUESTS) as made:
        yield made


def actors() -> list[psutil.Process]:
    """Processes of simulator actors that this process has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "SimulatorActor" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue  # it has ended meanwhile
    return found


def until_gone() -> None:
    deadline = time.monotonic() + 20.0
    while actors():
        assert time.monotonic() < deadline, actors()
        time.sleep(0.05)


class Unreadable(TraceRequest):
    """Can be sent, but not received."""

    def __reduce__(self) -> tuple[object, ...]:
        return wrong, ()


def deadly() -> Unsteered:
    os._exit(1)


def wrong() -> Unsteered:
    raise InputError("no such driver.")


def broken() -> Unsteered:
    raise ZeroDivisionError("a bug")


def test_results_are_those_of_one_process_in_order(pool: SimPool, expected: list[Summary]) -> None:
    told: list[tuple[int, int]] = []
    assert pool.map(TASKS, progress=lambda done, total: told.append((done, total))) == expected
    assert len(actors()) == 2
    assert told == sorted(told)
    assert told[-1] == (40, 40)
    assert len(told) >= 2 * 4  # several calls for each
    assert pool.map([]) == []


def test_drivers_and_closed_loops_run_there(pool: SimPool) -> None:
    tasks = [
        SimTask(setup=SETUP, driver=one_more),
        SimTask(setup=SETUP, concurrency=4, until_s=3.0),
    ]
    assert pool.map(tasks) == [run_task(task, REQUESTS) for task in tasks]


def test_an_actor_that_is_killed_costs_nothing(pool: SimPool, expected: list[Summary]) -> None:
    killed: list[int] = []

    def kill_one(done: int, total: int) -> None:
        if not killed:
            victim = actors()[0]
            victim.kill()
            killed.append(victim.pid)

    assert pool.map(TASKS, progress=kill_one) == expected
    assert killed


def test_a_task_that_kills_its_actor_fails_alone(pool: SimPool, expected: list[Summary]) -> None:
    tasks = [*TASKS]
    tasks[1] = replace(TASKS[1], driver=deadly)
    results = pool.map(tasks)
    assert isinstance(results[1], TaskFailed)
    assert "the process that ran it died, 2 time(s) of 2. The " in results[1].message
    assert ". Fix: give it more memory" in results[1].message
    assert [*results[:1], *results[2:]] == [*expected[:1], *expected[2:]]


def test_an_error_of_the_user_is_the_tasks_own(pool: SimPool, expected: list[Summary]) -> None:
    tasks = [replace(TASKS[0], driver=wrong), *TASKS[1:10]]
    assert pool.map(tasks) == [TaskFailed(message="no such driver."), *expected[1:10]]


def test_a_bug_is_raised_and_the_pool_goes_on(pool: SimPool, expected: list[Summary]) -> None:
    with pytest.raises(ZeroDivisionError, match="a bug"):
        pool.map([*TASKS, replace(TASKS[0], driver=broken)])
    assert pool.map(TASKS[:4]) == expected[:4]


def test_closing_leaves_nothing(pool: SimPool) -> None:
    pool.close()
    until_gone()
    deadline = time.monotonic() + 20.0
    while ray.available_resources().get("CPU", 0.0) < 2.0:
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.05)
    assert ray.is_initialized()
    with pytest.raises(UnavailableError, match="is closed"):
        pool.map(TASKS)


def test_who_finds_no_room_holds_up_nobody_and_is_named(
    connected: None, expected: list[Summary]
) -> None:
    with SimPool(REQUESTS, actors=3) as first:
        assert first.map(TASKS) == expected
        with (
            SimPool(REQUESTS, actors=1, start_s=0.5) as second,
            pytest.raises(UnavailableError, match=r"started none of 1 simulator.* Fix: "),
        ):
            second.map(TASKS)
        assert first.map(TASKS[:4]) == expected[:4]
    until_gone()


def test_actors_that_do_not_start_are_named(connected: None) -> None:
    with (
        SimPool([Unreadable(0.0, 1, 1)], actors=1, attempts=1) as pool,
        pytest.raises(UnavailableError, match=r"no simulator actor starts.*\. Fix: "),
    ):
        pool.map(TASKS)
    until_gone()


def test_nonsense_is_refused(connected: None) -> None:
    for make in (
        partial(SimPool, REQUESTS, actors=0),
        partial(SimPool, REQUESTS, attempts=0),
        partial(SimPool, REQUESTS, most=0),
    ):
        with pytest.raises(InputError, match="must be at least 1"):
            make()
    with pytest.raises(InputError, match="connected to a Ray cluster already"), local_ray():
        pass


def test_without_ray_there_is_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(UnavailableError, match="not connected to a Ray cluster"):
        SimPool(REQUESTS)
