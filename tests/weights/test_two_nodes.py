"""Real raylets, each node with a cache of its own: who lacks a model gets it from the others.

The model's directory is there for the first node only: the others are told of a path they lack.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

ray = pytest.importorskip("ray", reason="needs the serve extra")

from ray.cluster_utils import Cluster  # noqa: E402
from ray.util.scheduling_strategies import (  # noqa: E402
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from cluster.errors import UnavailableError  # noqa: E402
from serving.messages import EngineSpec  # noqa: E402
from serving.weights.cluster import store_name  # noqa: E402
from serving.weights.spec import WeightsSpec, model_key  # noqa: E402
from tests.weights.nodes import contents, model  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "weights"
MEMORY = 256 * 1024 * 1024

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


class Replica:
    """Does what a replica does before its engine starts, and lives on."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec

    async def started(self) -> str:
        from serving.weights.replica_source import local_source

        return await local_source(self._spec)


@dataclass
class Machines:
    """Nodes by name; the head's has no room for ranks."""

    cluster: Any
    root: Path
    nodes: dict[str, Any]

    def add(self, name: str) -> None:
        home = {"SHARDWISE_HOME": str(self.root / name)}
        self.nodes[name] = self.cluster.add_node(
            num_cpus=1, object_store_memory=MEMORY, env_vars=home
        )

    def replica(self, name: str, spec: EngineSpec) -> Any:
        """One that starts on a node; `started` says where it found its model."""
        where = NodeAffinitySchedulingStrategy(self.nodes[name].node_id, soft=False)
        made = ray.remote(Replica).options(num_cpus=0, scheduling_strategy=where)
        return made.remote(spec)

    def origin(self, name: str, original: Path, key: str) -> Any:
        """A replica whose node has the model's directory and gives it to others."""
        replica = self.replica(name, self.spec(str(original), key))
        assert ray.get(replica.started.remote()) == str(original)
        until_s = time.monotonic() + 60
        while not self.offers(name, key):
            assert time.monotonic() < until_s, "nothing is offered within 60 s"
            time.sleep(0.1)
        return replica

    def offers(self, name: str, key: str) -> bool:
        """Whether a node gives this model to others."""
        try:
            store = ray.get_actor(store_name(self.nodes[name].node_id), namespace=NAMESPACE)
        except ValueError:  # not yet
            return False
        return ray.get(store.offer.remote(key)) is not None

    def spec(self, source: str, key: str) -> EngineSpec:
        """A replica's orders, in whose words the model is at `source`."""
        return EngineSpec(
            pool="main",
            model_name="m",
            model_source=source,
            engine_args={},
            device_kind="cpu",
            bundles=({"CPU": 1.0},),
            controller="none",
            namespace=NAMESPACE,
            link_secret="",
            weights=WeightsSpec(key=key, namespace=NAMESPACE, arbiter="none"),
        )


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False},
    )
    made = Machines(cluster, tmp_path_factory.mktemp("machines"), {})
    ray.init(
        cluster.address,
        log_to_driver=False,
        namespace=NAMESPACE,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    made.nodes["head"] = cluster.head_node
    made.add("first")
    made.add("second")
    yield made
    ray.shutdown()
    cluster.shutdown()


def test_the_second_node_fetches_from_the_first_and_not_from_the_origin(
    machines: Machines,
) -> None:
    original = model(machines.root / "only-first" / "model", size=70_000_000, shards=2)
    key = model_key(str(original))
    origin = machines.origin("first", original, key)
    assert not (machines.root / "first" / "weights" / key).exists()  # used as it is
    both = [machines.replica("second", machines.spec("/not/here", key)) for _ in range(2)]
    found = ray.get([replica.started.remote() for replica in both])
    assert found[0] == found[1]
    assert Path(found[0]).is_relative_to(machines.root / "second" / "weights")
    assert contents(Path(found[0])) == contents(original)
    del origin


@contextmanager
def replica_on_both_nodes(spec: EngineSpec, *, cache_dir: Path | None) -> Iterator[Any]:
    """One with a rank on each node."""
    assert spec.weights is not None
    weights = replace(spec.weights, cache_dir=None if cache_dir is None else str(cache_dir))
    group = ray.util.placement_group([{"CPU": 1.0}, {"CPU": 1.0}], strategy="STRICT_SPREAD")
    where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    replica = ray.remote(Replica).options(num_cpus=0, scheduling_strategy=where)
    yield replica.remote(replace(spec, weights=weights))
    ray.util.remove_placement_group(group)


def test_a_replica_on_two_nodes_has_its_model_on_both_under_one_path(machines: Machines) -> None:
    original = model(machines.root / "ranks" / "model")
    key = model_key(str(original))
    origin = machines.origin("head", original, key)
    spec = machines.spec("/not/here", key)
    with replica_on_both_nodes(spec, cache_dir=machines.root / "shared") as replica:
        found = Path(ray.get(replica.started.remote()))
        assert found.is_relative_to(machines.root / "shared")
        assert contents(found) == contents(original)
    names_both = r"caches .* different paths: .*first/weights.*Fix: set weights\.cache_dir"
    with (
        replica_on_both_nodes(spec, cache_dir=None) as replica,
        pytest.raises(UnavailableError, match=names_both),
    ):
        ray.get(replica.started.remote())
    del origin


def large_model(machines: Machines, name: str) -> tuple[Path, str]:
    made = model(machines.root / name, size=400_000_000, shards=1)
    return made, model_key(str(made))


def store_of(machines: Machines, name: str) -> psutil.Process:
    """The process of a node's store."""
    raylet = machines.nodes[name].all_processes["raylet"][0].process.pid
    (found,) = [
        child
        for child in psutil.Process(raylet).children(recursive=True)
        if any("WeightStore" in word for word in child.cmdline())
    ]
    return found


def stop_midway(coming: Any, folder: Path, store: psutil.Process) -> None:
    """Halt a store while a file of its own is on its way to the folder."""
    until_s = time.monotonic() + 60
    while not any(part.stat().st_size for part in folder.rglob("*.safetensors.part")):
        assert time.monotonic() < until_s, "nothing came within 60 s"
        time.sleep(0.005)
    store.suspend()
    assert ray.wait([coming], timeout=2.0) == ([], [coming])


def test_a_fetch_outlives_the_store_it_fetches_from(machines: Machines) -> None:
    original, key = large_model(machines, "killed-store")
    origin = machines.origin("first", original, key)
    store = store_of(machines, "first")
    fetching = machines.replica("second", machines.spec("/not/here", key))
    coming = fetching.started.remote()
    stop_midway(coming, machines.root / "second" / "weights" / key, store)
    store.kill()  # Ray starts it again, and the replica tells it again what there is
    assert contents(Path(ray.get(coming))) == contents(original)
    del origin


def test_a_fetch_goes_on_from_another_node_when_its_source_is_lost(machines: Machines) -> None:
    machines.add("third")
    original, key = large_model(machines, "lost-node")
    origin = machines.origin("third", original, key)
    store = store_of(machines, "third")
    fetching = machines.replica("second", machines.spec("/not/here", key))
    coming = fetching.started.remote()
    stop_midway(coming, machines.root / "second" / "weights" / key, store)
    another = machines.origin("first", original, key)
    machines.cluster.remove_node(machines.nodes.pop("third"), allow_graceful=False)
    assert contents(Path(ray.get(coming))) == contents(original)
    del origin, another
