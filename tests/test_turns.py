"""Tests that stand in each other's way are given to one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.turns import BESIDE, ONE_AT_A_TIME, Turns, in_turns, one_at_a_time

ROOT = Path(__file__).resolve().parents[1]
# What a file has in it whose tests serve, or leave the address of a cluster where others look.
SIGNS = ("ray.cluster_utils import", "_instance(", "bare_cluster(", 'importorskip("vllm"')


@pytest.mark.parametrize("place", [*ONE_AT_A_TIME, *BESIDE])
def test_what_is_named_is_there(place):
    assert (ROOT / place).exists()


def test_whatever_serves_or_shares_rays_folder_runs_one_at_a_time():
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    beside = [name for name in files if not one_at_a_time(name) and name not in BESIDE]
    told = {name: (ROOT / name).read_text() for name in beside if name != "tests/test_turns.py"}
    assert [name for name, text in told.items() if any(sign in text for sign in SIGNS)] == []
    assert len(beside) < len(files)


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


def test_the_first_process_gets_all_of_them_and_another_whole_modules():
    alone = ["tests/live/test_address.py::test_1", "tests/weights/test_two_nodes.py::test_2"]
    keys, task = (
        [f"{module}::test_{number}[a::b]" for number in range(3)]
        for module in ("tests/serving/test_keys.py", "tests/sim/test_task.py")
    )
    items = [SimpleNamespace(nodeid=name) for name in (*keys, alone[0], *task, alone[1])]
    in_turns(items)
    names = [item.nodeid for item in items]
    assert names == [*alone, *keys, *task]

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
