"""A Ray cluster of two nodes (both on this machine) measures itself and leaves nothing reserved."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="needs the cpu or gpu extra")
ray = pytest.importorskip("ray", reason="needs the serve extra")

from ray.cluster_utils import Cluster  # noqa: E402

from cluster.calibration.curves import fit_links  # noqa: E402
from cluster.calibration.microbench import Sizes  # noqa: E402
from cluster.calibration.points import CollectiveKind, LinkPath, Measurements  # noqa: E402
from cluster.errors import UnavailableError  # noqa: E402
from cluster.model.devices import get_device  # noqa: E402
from cluster.ray_backend import measure  # noqa: E402

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    # Ray announces a change of how it hides accelerators.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

SIZES = (1024, 16_384, 2**20)
TINY = Sizes(weights=((256, 256),), tokens=(1, 2, 64, 256), copies=(2**16, 2**20), peers=())


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[None]:
    """Two nodes of two CPUs and no GPU, whatever this machine has."""
    small = {"num_cpus": 2, "num_gpus": 0, "object_store_memory": 128 * 2**20}
    nodes = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    try:
        nodes.add_node(**small)
        ray.init(address=nodes.address, log_to_driver=False)
        nodes.wait_for_nodes()
        yield
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture(scope="module")
def found(two_nodes: None) -> Measurements:
    return measure.measure_cluster(budget_s=60.0, sizes=TINY, collective_sizes=SIZES)


def test_every_node_measures_itself(found: Measurements) -> None:
    assert len(found.node.split(", ")) == 2
    assert len(found.gemm) == 2 * len(TINY.tokens)
    assert len(found.launches) == 2
    assert found.kind == "cpu"


def test_collectives_run_inside_and_across_nodes(found: Measurements) -> None:
    inside = [p for p in found.collectives if not p.crosses_domain]
    across = [p for p in found.collectives if p.crosses_domain]
    every = {(kind, size) for kind in CollectiveKind for size in SIZES}
    assert {(p.kind, p.bytes) for p in inside} == every
    assert {(p.kind, p.bytes) for p in across} == every
    assert {(p.ranks, p.domains, p.path) for p in inside} == {(2, 1, LinkPath.LOOPBACK)}
    assert {(p.ranks, p.domains, p.path) for p in across} == {(2, 2, LinkPath.NETWORK)}
    fit = fit_links(found.collectives, device=get_device("cpu"), family="cpu")
    assert {"link.cpu.latency_s", "network.latency_s", "network.efficiency"} <= set(
        fit.coefficients
    )


def test_nothing_stays_reserved(found: Measurements) -> None:
    deadline = time.monotonic() + 30.0
    while ray.available_resources().get("CPU", 0.0) < 4.0:
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.2)


def test_nodes_without_torch_are_named_before_anything_runs(
    two_nodes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> tuple[str, bool]:
        return "some-host", False

    monkeypatch.setattr(measure, "_has_torch", absent)
    with pytest.raises(UnavailableError, match=r"not installed on 2 of 2 node.*some-host \("):
        measure.measure_cluster(budget_s=600.0)


def test_a_benchmark_that_fails_names_its_node(
    two_nodes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(budget_s: float, sizes: Sizes | None) -> Measurements:
        raise UnavailableError("no such luck")

    monkeypatch.setattr(measure, "_measure", broken)
    with pytest.raises(UnavailableError, match=r"benchmark failed on \d+\.\S+: no such luck"):
        measure.measure_nodes(measure.living_nodes(), budget_s=1.0)


def test_without_ray_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(UnavailableError, match="not connected to a Ray cluster"):
        measure.living_nodes()
