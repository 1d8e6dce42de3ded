"""Tests that stand in each other's way are given to one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.nodeid import NodeId

from tests.turns import ONE_AT_A_TIME, Turns, in_turns, named_apart, one_at_a_time

ROOT = Path(__file__).resolve().parents[1]
# Whoever serves by one of these does so with real engines, or strikes scripted ones.
SERVING = ("_instance(", "bare_cluster(")
OWN_RAY = ("ray.init(", "ray.cluster_utils", "token_cluster(")


def files_with(*words: str) -> set[str]:
    paths = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}
    return {name for name, text in texts.items() if any(word in text for word in words)}


@pytest.mark.parametrize("place", ONE_AT_A_TIME)
def test_what_is_named_is_there(place):
    assert (ROOT / place).exists()


def test_whatever_serves_takes_a_gpu_or_starts_ray_runs_one_at_a_time():
    found = files_with(*SERVING, *OWN_RAY, "mark.gpu")
    assert {name for name in found if not one_at_a_time(name)} == set()
    assert len(found) > len(ONE_AT_A_TIME)


@dataclass(eq=False)
class Process:
    """As xdist hands tests to it, by their numbers."""

    name: str
    given: list[int] = field(default_factory=list)
    shutting_down: bool = False

    @property
    def gateway(self) -> SimpleNamespace:
        return SimpleNamespace(id=self.name)

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.given += numbers

    def shutdown(self) -> None:
        self.shutting_down = True


def item(nodeid: str, name: str) -> Any:
    found = NodeId.parse(nodeid)
    return SimpleNamespace(nodeid=nodeid, name=name, _id=found)


def test_parameters_that_an_id_has_lost_come_back():
    items = [item("a.py::test", "test[GET /b]"), item("a.py::other[1]", "other[1]")]
    named_apart(items)
    assert [str(each._id) for each in items] == ["a.py::test[GET /b]", "a.py::other[1]"]


def test_two_tests_of_one_id_are_refused_since_one_would_not_run():
    with pytest.raises(pytest.UsageError, match=r"\['a.py::test'\]"):
        named_apart([item("a.py::test", "test"), item("a.py::test", "test")])


def test_the_first_process_gets_all_of_them_and_another_whole_modules():
    alone = ["tests/live/test_address.py::test_1", "tests/live/two_ranks/test_faults.py::test_2"]
    keys, pool = (
        [f"{module}::test_{number}[a::b]" for number in range(3)]
        for module in ("tests/serving/test_keys.py", "tests/serving/test_rates.py")
    )
    items = [SimpleNamespace(nodeid=name) for name in (*keys, alone[0], *pool, alone[1])]
    in_turns(items)
    names = [item.nodeid for item in items]
    assert names == [*alone, *keys, *pool]

    options = SimpleNamespace(loadscopereorder=False)
    config = SimpleNamespace(option=options, getvalue=lambda _: ["2*popen"])
    scheduler = Turns(config)
    first, other = Process("gw0"), Process("gw1")
    for process in (other, first):  # as they came to be ready
        scheduler.add_node(process)
        scheduler.add_node_collection(process, names)
    scheduler.schedule()
    assert [names[number] for number in first.given[: len(alone)]] == alone
    assert [names[number] for number in other.given] == keys
