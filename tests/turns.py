"""Two processes share a run of tests (`pytest -n 2`, which is `make test`): who runs what?

Live tests run in the first, one after another: a service waits for most of its time, and two with
real engines would be too much for two cores. With them go those with a Ray cluster in Ray's own
folder, where one cluster at a time leaves its address. The second process runs all other tests
meanwhile, and the first helps it once it is through. A module's tests stay together and in their
order.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# How their node ids begin.
ONE_AT_A_TIME = (
    "tests/live/",
    "tests/calibration/test_measure_live.py",
    "tests/ray_backend/test_search_cluster.py",
    "tests/weights/test_two_nodes.py",
)
# Of these: no real engine, and no figure that depends on what else the cores do.
BESIDE = (
    "tests/live/test_asleep.py",
    "tests/live/test_keepers_on_ray.py",
    "tests/live/test_prometheus.py",
    "tests/live/test_replan.py",
)
_FIRST = "gw0"  # as xdist calls the first process
_BEHIND = 5  # nice: a fraction of what others get while they want both cores, but never nothing


def one_at_a_time(nodeid: str) -> bool:
    """Whether a test is one of the first process's."""
    return nodeid.startswith(ONE_AT_A_TIME) and not nodeid.startswith(BESIDE)


def in_turns(items: list[pytest.Item]) -> None:
    """Bring what the first process runs to the front: it is given what comes first."""
    items.sort(key=lambda item: not one_at_a_time(item.nodeid))


def fall_behind(worker: str) -> None:
    """Let every process but the first stand back where cores are short."""
    if worker == _FIRST:
        return
    os.setsid()  # Linux weighs sessions, and only within one the processes
    os.nice(_BEHIND)
    with contextlib.suppress(OSError):  # a kernel that does not
        Path("/proc/self/autogroup").write_text(str(_BEHIND))


class Turns(LoadScopeScheduling):
    """Hands out what runs one at a time as one piece of work, all else by module."""

    @property
    def nodes(self) -> list[WorkerController]:
        """The processes in the order of their names: any may have been ready before the first."""
        return sorted(super().nodes, key=lambda node: str(node.gateway.id))

    def _split_scope(self, nodeid: str) -> str:
        return "one at a time" if one_at_a_time(nodeid) else nodeid.partition("::")[0]
