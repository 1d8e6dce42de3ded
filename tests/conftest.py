"""What all tests share: Hypothesis's examples are the same every time; no GPU, no test of one.

`pytest -n 2` runs them in two processes as `tests.turns` says.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import turns

# Examples are cheap but the machine may be busy. A change is judged by the examples of the one
# before it; new ones are looked for by `make explore` (docs/decisions/0024-examples.md).
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("same")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a shell's background job has it; what tests start, and interrupt, would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        turns.fall_behind(config.workerinput["workerid"])


@pytest.hookimpl(optionalhook=True)  # absent with `-p no:xdist`
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> turns.Turns:
    config.option.loadscopereorder = False  # the order of `turns.in_turns`
    return turns.Turns(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    turns.named_apart(items)
    if hasattr(config, "workerinput"):
        turns.in_turns(items)
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU, and this machine has none")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
