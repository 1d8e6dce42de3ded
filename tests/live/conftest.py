"""One instance of the real thing per module of live tests: Ray, Serve, vLLM, the bundled model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.instance import FAST_STEERING, LiveInstance
from tests.live.two_pools import two_pools

pytest.importorskip("vllm", reason="needs the cpu or gpu extra")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveInstance]:
    """The bundled model planned for this machine and served: main 1 to 2, light 0 to 1."""
    with two_pools(tmp_path_factory.mktemp("home"), steering=FAST_STEERING) as instance:
        yield instance
