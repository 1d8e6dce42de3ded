"""A controller whose start fails is started again, on a real Ray; the actors are made up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="needs the serve extra")

from cluster.errors import UnavailableError  # noqa: E402
from serving.controller_life import STARTS, ControllerLife, is_up  # noqa: E402
from tests.live.instance import until  # noqa: E402

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore"),
]

NAMESPACE = "life"


class Controller:
    """Its first starts fail. `folder`: has a file for each start."""

    def __init__(self, folder: Path, *, failing: int, takes_s: float = 0.0) -> None:
        started = len(list(folder.iterdir()))
        (folder / str(started)).touch()
        time.sleep(takes_s)
        if started < failing:
            raise ModuleNotFoundError("No module named 'serving.layout'")

    def pid(self) -> int:
        return os.getpid()


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init("local", num_cpus=1, namespace=NAMESPACE, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def starting(name: str, folder: Path, **how: Any) -> Callable[[], Any]:
    options = {"name": name, "lifetime": "detached", "max_restarts": -1, "num_cpus": 0}
    return lambda: ray.remote(Controller).options(**options).remote(folder, **how)


def test_it_is_started_again_under_its_name(tmp_path: Path) -> None:
    life = ControllerLife(starting("again", tmp_path, failing=STARTS - 1))
    until(life.check, limit_s=60, what="it answers")
    assert len(list(tmp_path.iterdir())) == STARTS
    assert ray.get(ray.get_actor("again").pid.remote()) > 0


def test_one_that_never_starts_is_given_up_with_the_reason(tmp_path: Path) -> None:
    life = ControllerLife(starting("never", tmp_path, failing=99))
    with pytest.raises(UnavailableError, match="3 times in a row") as told:
        until(life.check, limit_s=60, what="it answers")
    assert "ModuleNotFoundError: No module named 'serving.layout'" in str(told.value)
    assert len(str(told.value).splitlines()) == 1


def test_one_that_dies_for_good_has_a_successor(tmp_path: Path) -> None:
    life = ControllerLife(starting("good", tmp_path, failing=0))
    until(life.look, limit_s=60, what="it answers")
    before = ray.get_actor("good")
    pid = ray.get(before.pid.remote())
    ray.kill(before, no_restart=True)
    until(lambda: life.look() and len(list(tmp_path.iterdir())) == 2, limit_s=60, what="another")
    assert ray.get(ray.get_actor("good").pid.remote()) != pid


def test_a_name_that_ray_still_keeps_is_asked_for_again(tmp_path: Path) -> None:
    start = starting("kept", tmp_path, failing=0)
    refusals = iter([False, True, True])

    def refused() -> Any:
        if next(refusals, False):
            raise ray.exceptions.ActorAlreadyExistsError("kept")
        return start()

    life = ControllerLife(refused)
    until(life.look, limit_s=60, what="it answers")
    ray.kill(ray.get_actor("kept"), no_restart=True)
    until(lambda: life.check() and len(list(tmp_path.iterdir())) == 2, limit_s=60, what="another")
    assert list(refusals) == []


def test_one_whose_process_ends_is_left_to_ray(tmp_path: Path) -> None:
    life = ControllerLife(starting("left", tmp_path, failing=0))
    until(life.look, limit_s=60, what="it answers")
    actor = ray.get_actor("left")
    ray.kill(actor, no_restart=False)
    until(lambda: len(list(tmp_path.iterdir())) == 2, limit_s=60, what="Ray starts another")
    until(life.check, limit_s=60, what="it answers")
    assert ray.get_actor("left")._actor_id == actor._actor_id
    assert len(list(tmp_path.iterdir())) == 2


def test_one_that_is_slow_to_start_is_not_up(tmp_path: Path) -> None:
    life = ControllerLife(starting("slow", tmp_path, failing=0, takes_s=3.0))
    actor = ray.get_actor("slow")
    assert not is_up(actor)
    until(life.check, limit_s=60, what="it answers")
    assert is_up(actor)
