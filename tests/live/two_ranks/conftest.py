"""One instance for all modules of this folder: a tiny model on two ranks, behind a key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.instance import LiveInstance
from tests.live.tiny_instance import tiny_instance
from tests.live.two_ranks.keys import Keys, new_keys

# Replicas are struck young here, again and again, and requests wait for the next, however long it
# loads: no tier shortens their answers.
STEERING = {
    **dict.fromkeys(("tier_enter_s", "tier_leave_s", "tier_probe_s"), 3600.0),
    "faults": {"failed_starts": 100},
}
LIMITS = {"queue_wait_s": 300.0}
ARGUMENTS = {"max_num_batched_tokens": 64, "dtype": "float32"}


@pytest.fixture(scope="package")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return new_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="package")
def two_ranks(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> Iterator[LiveInstance]:
    with tiny_instance(
        tmp_path_factory.mktemp("two_ranks"),
        steering=STEERING,
        engine_args=ARGUMENTS,
        limits=LIMITS,
        keys_file=keys.path,
        key=keys.unlimited,
    ) as instance:
        yield instance
