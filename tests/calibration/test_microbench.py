"""The microbenchmarks run: on this machine's CPU with tiny sizes, between two gloo processes."""

from __future__ import annotations

import importlib.util
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.calibration import microbench
from cluster.calibration.collective_bench import Schedule, teams
from cluster.calibration.curves import fit_links, fit_measurements
from cluster.calibration.machine import local_collectives, measure_machine
from cluster.calibration.microbench import Sizes, measure_node, spread
from cluster.calibration.peer_bench import path_inside, path_of
from cluster.calibration.points import (
    CollectiveKind,
    CollectivePoint,
    LinkPath,
    Measurements,
    PeerPoint,
)
from cluster.calibration.timing import CpuTimer, Deadline
from cluster.errors import InputError, UnavailableError
from cluster.model.devices import DEVICES, get_device

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs the cpu or gpu extra (torch)"
)
TINY = Sizes(
    weights=((256, 256), (512, 256)),
    tokens=(1, 2, 64, 256),
    copies=(2**16, 2**20, 2**22),
    peers=(),
)
SIZES = (1024, 16_384, 2**20)


@pytest.fixture(scope="module")
def node() -> Measurements:
    return measure_node(budget_s=5.0, sizes=TINY)


@pytest.fixture(scope="module")
def collectives() -> tuple[CollectivePoint, ...]:
    return local_collectives(
        Schedule(
            world=2,
            device="cpu",
            teams=teams([0, 0], inside=LinkPath.LOOPBACK),
            sizes=SIZES,
            budget_s=20.0,
        )
    )


@needs_torch
def test_a_cpu_node_is_measured(node: Measurements) -> None:
    if node.kind != "cpu":
        pytest.skip("this machine has CUDA devices, they are measured instead")
    grid = {(m, n, k) for m in TINY.tokens for n, k in TINY.weights}
    assert {(p.m, p.n, p.k) for p in node.gemm} == grid
    assert {p.format for p in node.gemm} == {"fp32"}
    assert {p.bytes for p in node.copies} == set(TINY.copies)
    assert [p.captured for p in node.launches] == [False]
    assert node.host_copies == node.peers == ()
    assert node.devices >= 1
    assert node.device
    times = {(p.m, p.n): p.seconds for p in node.gemm}
    assert times[256, 512] > times[1, 512]  # 256 times the work


@needs_torch
def test_the_thread_count_is_left_as_it_was(node: Measurements) -> None:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        measure_node(budget_s=0.0, sizes=TINY)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


@needs_torch
def test_without_time_little_is_measured_and_it_is_said() -> None:
    start = time.monotonic()
    found = measure_node(budget_s=0.0, sizes=Sizes.of("cpu"))
    assert time.monotonic() - start < 20.0
    assert found.gemm == ()
    assert len(found.copies) == 1
    assert any("matrix products: 0 of" in note for note in found.notes)


@needs_torch
def test_two_processes_run_every_collective(collectives: tuple[CollectivePoint, ...]) -> None:
    assert {(p.kind, p.bytes) for p in collectives} == {
        (kind, size) for kind in CollectiveKind for size in SIZES
    }
    assert len(collectives) == len(CollectiveKind) * len(SIZES)
    for point in collectives:
        assert (point.ranks, point.domains, point.crosses_domain) == (2, 1, False)
        assert point.path is LinkPath.LOOPBACK
        assert 1e-6 < point.seconds < 5.0


@needs_torch
def test_measurements_become_coefficients(
    node: Measurements, collectives: tuple[CollectivePoint, ...]
) -> None:
    if node.kind != "cpu":
        pytest.skip("this machine has CUDA devices, they are measured instead")
    cpu = get_device("cpu")
    found = dict(fit_measurements(node, device=cpu, family="cpu").coefficients)
    found |= fit_links(collectives, device=cpu, family="cpu").coefficients
    assert set(found) == {
        "kernel.cpu.small_s",
        "gemm.cpu.fp32.mbu",
        "gemm.cpu.fp32.mfu",
        "gemm.cpu.fp32.half_tokens",
        "gemm.cpu.fp32.floor_s",
        "gemm.cpu.fp32.serial_s",
        "link.cpu.latency_s",
        "link.cpu.efficiency",
        "link.ring_s",
        "all_to_all.efficiency",
    }
    assert all(value > 0.0 for value in found.values())
    assert found["gemm.cpu.fp32.mfu"] <= 1.0
    assert found["link.cpu.efficiency"] <= 1.0
    assert found["kernel.cpu.small_s"] < 1e-3


@needs_torch
def test_ranks_agree_to_stop() -> None:
    schedule = Schedule(
        world=2, device="cpu", teams=teams([0, 0], inside=LinkPath.LOOPBACK), budget_s=0.0
    )
    assert local_collectives(schedule) == ()


@needs_torch
def test_a_rank_that_fails_is_named() -> None:
    schedule = Schedule(world=2, device="no-such-device", teams=teams([0, 0], inside=LinkPath.SHM))
    with pytest.raises(UnavailableError, match=r"rank \d of the collectives failed: RuntimeError"):
        local_collectives(schedule)


def test_one_rank_has_nobody_to_talk_to() -> None:
    assert teams([0], inside=LinkPath.NVLINK) == ()
    with pytest.raises(InputError, match="at least 2 ranks"):
        local_collectives(Schedule(world=1, device="cpu", teams=()))


def test_a_node_without_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnavailableError, match=r"PyTorch cannot be imported on node .*extra"):
        measure_node(budget_s=1.0)


def test_the_module_needs_no_torch_to_load() -> None:
    assert not hasattr(microbench, "torch")


@given(st.lists(st.integers(1, 10**9), min_size=1, unique=True))
def test_a_spread_begins_with_both_ends(values: list[int]) -> None:
    found = list(spread(values))
    assert sorted(found) == sorted(values)
    assert found[0] == min(values)
    assert found[:2][-1] == max(values)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=32))
def test_teams_lie_where_they_say(domain_of: list[int]) -> None:
    for team in teams(domain_of, inside=LinkPath.NVLINK):
        touched = {domain_of[rank] for rank in team.ranks}
        assert len(team.ranks) == len(set(team.ranks)) >= 2
        assert len(touched) == team.domains
        if team.domains == 1:
            assert team.path is LinkPath.NVLINK
        else:
            assert team.path is LinkPath.NETWORK
            assert len(team.ranks) == team.domains


def test_every_size_of_team_is_there() -> None:
    counts = [len(team.ranks) for team in teams([0] * 8, inside=LinkPath.NVLINK)]
    assert counts == [2, 4, 8]
    across = teams([0, 0, 1, 1, 2, 2], inside=LinkPath.NVLINK)
    assert [(team.ranks, team.domains) for team in across] == [
        ((0, 1), 1),
        ((0, 2), 2),
        ((0, 2, 4), 3),
    ]


@pytest.mark.parametrize(
    ("access", "bandwidth", "host", "path"),
    [
        (False, 20e9, 25e9, LinkPath.SHM),
        (True, 24e9, 25e9, LinkPath.PCIE),
        (True, 52e9, 25e9, LinkPath.NVLINK),  # an NVLink bridge on PCIe 4.0
        (True, 400e9, 55e9, LinkPath.NVLINK),  # an NVSwitch node
        (True, 400e9, 380e9, LinkPath.NVLINK),  # Grace: the host link is as fast
        (True, 100e9, 0.0, LinkPath.PCIE),
    ],
)
def test_a_path_is_known_by_its_bandwidth(access, bandwidth, host, path) -> None:
    found = path_of(peer_access=access, bandwidth=bandwidth, host_bandwidth=host)
    assert found is path


@pytest.mark.parametrize(
    ("pairs", "path"),
    [
        ({}, LinkPath.SHM),
        ({(0, 1): LinkPath.NVLINK, (0, 2): LinkPath.NVLINK}, LinkPath.NVLINK),
        ({(0, 1): LinkPath.NVLINK, (0, 2): LinkPath.PCIE}, LinkPath.PCIE),
        ({(0, 1): LinkPath.NVLINK, (0, 2): LinkPath.SHM}, LinkPath.SHM),
    ],
)
def test_a_node_is_connected_as_its_worst_pair_is(pairs, path) -> None:
    points = [PeerPoint(*pair, 1024, 1e-5, link) for pair, link in pairs.items()]
    points += [PeerPoint(*pair, 1024, 3e-5, LinkPath.SHM) for pair in pairs]  # staged
    found = Measurements(node="a", device="x", kind="gpu", devices=3, peers=tuple(points))
    assert path_inside(found) is path


class RefusingTimer(CpuTimer):
    def seconds(self, body, *, captured=True) -> float:
        raise RuntimeError("cublasLt does not like this\nat line 7")


@needs_torch
def test_a_format_the_device_refuses_is_left_with_a_note() -> None:
    notes: list[str] = []
    points = microbench.bench_gemm(
        microbench.load_torch(),
        sizes=TINY,
        timer=RefusingTimer(),
        deadline=Deadline.after(60.0),
        notes=notes,
    )
    assert points == ()
    assert notes == [
        "matrix products in fp32 stop at m=1, n=256, k=256: cublasLt does not like this"
    ]


@pytest.mark.gpu
def test_a_gpu_is_measured_and_fitted() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    found = measure_node(budget_s=60.0)
    assert found.kind == "gpu"
    captured = {point.captured: point.seconds for point in found.launches}
    assert captured[True] < captured[False]
    assert {point.format for point in found.gemm} <= {"bf16", "fp8"}
    flat = found.device.lower().replace(" ", "-")
    known = max((name for name in DEVICES if name in flat), key=len, default="")
    if not known:
        pytest.skip(f"'{found.device}' is not in the catalogue")
    fit = fit_measurements(found, device=DEVICES[known], family="test")
    assert 0.3 < fit.coefficients["gemm.test.bf16.mfu"] <= 1.0
    assert 0.3 < fit.coefficients["gemm.test.bf16.mbu"] <= 1.0
    assert fit.report.median_error < 0.3


@needs_torch
def test_a_machine_is_measured_without_ray() -> None:
    found = measure_machine(budget_s=30.0, sizes=TINY, collective_sizes=(1024,))
    if found.kind == "cpu" and found.devices >= 2:
        assert {point.kind for point in found.collectives} == set(CollectiveKind)
        assert {point.path for point in found.collectives} == {LinkPath.LOOPBACK}
    else:
        assert found.gemm


@pytest.mark.gpu
def test_gpus_communicate() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    points = local_collectives(
        Schedule(
            world=2,
            device="cuda",
            teams=teams([0, 0], inside=LinkPath.NVLINK),
            sizes=(1024, 2**16, 2**24),
        )
    )
    assert len(points) == 3 * len(CollectiveKind)
