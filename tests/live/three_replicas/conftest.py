"""One instance for all modules of this folder: three scripted replicas behind one gateway."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.scripted_instance import ScriptedInstance, scripted_instance


@pytest.fixture(scope="package")
def three_replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedInstance]:
    with scripted_instance(tmp_path_factory.mktemp("home")) as instance:
        yield instance
