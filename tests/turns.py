"""Two processes share a run of tests (`pytest -n 2`, which is `make test`): who runs what?

Live tests run in the first, one after another: a service waits for most of its time, and two with
real engines would be too much for two cores, or for a GPU. The second process runs all other tests
meanwhile, and the first helps it once it is through. There, tests with a Ray of their own come
first, so that the many quick ones are beside the heaviest of the live ones. A module's tests stay
together and in their order.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

LIVE = "tests/live/"
ON_GPU = ("tests/calibration/test_microbench.py", "tests/serving/test_devices.py")  # so is vLLM
# Of the live ones, what has no real engine and no figure that depends on what else the cores do.
BESIDE = tuple(
    f"{LIVE}test_{name}.py" for name in ("asleep", "keepers_on_ray", "prometheus", "replan")
)
WITH_RAY = (
    *BESIDE,
    "tests/calibration/test_measure_live.py",
    "tests/cli/test_search.py",
    "tests/cli/test_simulate.py",
    "tests/ray_backend/",
    "tests/rl_search/test_train.py",
    "tests/weights/test_two_nodes.py",
)
_FIRST = "gw0"  # as xdist calls the first process
# Niceness: a fraction of what others get while they want both cores, but never nothing. Ray gives
# its workers 15.
_SESSION_BEHIND, _PROCESS_BEHIND = 5, 19


def one_at_a_time(nodeid: str) -> bool:
    """Whether a test is one of the first process's."""
    return nodeid.startswith((LIVE, *ON_GPU)) and not nodeid.startswith(BESIDE)


def in_turns(items: list[pytest.Item]) -> None:
    """First what the first process runs, since it takes first; then what has a Ray of its own."""
    items.sort(key=lambda item: _turn(item.nodeid))


def _turn(nodeid: str) -> int:
    if one_at_a_time(nodeid):
        return 0
    return 1 if nodeid.startswith(WITH_RAY) else 2


def fall_behind(worker: str) -> None:
    """Let every process but the first stand back where cores are short."""
    if worker == _FIRST:
        return
    os.setsid()  # Linux weighs sessions, and only within one the processes
    os.nice(_PROCESS_BEHIND)
    with contextlib.suppress(OSError):  # a kernel that does not
        Path("/proc/self/autogroup").write_text(str(_SESSION_BEHIND))


class Turns(LoadScopeScheduling):
    """Hands out what runs one at a time as one piece of work, all else by module."""

    @property
    def nodes(self) -> list[WorkerController]:
        """The processes in the order of their names: any may have been ready before the first."""
        return sorted(super().nodes, key=lambda node: str(node.gateway.id))

    def _split_scope(self, nodeid: str) -> str:
        return "one at a time" if one_at_a_time(nodeid) else nodeid.partition("::")[0]
