"""What all tests share: Hypothesis without deadlines; tests that need a GPU skip without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Examples are cheap but the machine may be busy.
settings.register_profile("shared_machine", deadline=None)
settings.load_profile("shared_machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU, and this machine has none")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
