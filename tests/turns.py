"""Two processes share a run of tests (`pytest -n 2`, which is `make test`): who runs what?

Live tests, and others with a Ray of their own, run in the first, one after another: they wait for
most of their time, and two at once would be too much for two cores (Ray gives up a node that is not
up in half a minute), or for a GPU. The second process runs all other tests meanwhile, and the first
helps it once it is through. A module's tests stay together and in their order.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ONE_AT_A_TIME = (
    "tests/live/",
    "tests/calibration/test_microbench.py",  # takes a GPU, as vLLM does
    "tests/serving/test_devices.py",
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
    return nodeid.startswith(ONE_AT_A_TIME)


def named_apart(items: Iterable[pytest.Item]) -> None:
    """See that no two tests have one id: processes are told by it what to run.

    With pytest 9.2 schemathesis loses the parameters that a test's name ends with. Raises
    UsageError for what is still the same.
    """
    seen: Counter[str] = Counter()
    for item in items:
        _, bracket, parameters = item.name.partition("[")
        if bracket and "[" not in item.nodeid:
            item._id = item._id.with_params(parameters.removesuffix("]"))
        seen[item.nodeid] += 1
    if twice := sorted(name for name, count in seen.items() if count > 1):
        raise pytest.UsageError(f"these tests have one id: {twice}. Fix: name them apart.")


def in_turns(items: list[pytest.Item]) -> None:
    """First what the first process runs, since it takes first."""
    items.sort(key=lambda item: not one_at_a_time(item.nodeid))


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
