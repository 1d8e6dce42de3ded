"""Fits find the parameters that points were made with, through noise and outliers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.calibration.curves import (
    copy_bandwidth,
    fit_floor,
    fit_gemm,
    fit_links,
    fit_measurements,
    gemm_s,
    nvlink_pairs,
    nvlink_switch_bytes,
)
from cluster.calibration.link_curves import collective_s
from cluster.calibration.points import (
    CollectiveKind,
    CollectivePoint,
    CopyPoint,
    GemmPoint,
    LaunchPoint,
    LinkPath,
    Measurements,
    PeerPoint,
)
from cluster.errors import InputError
from cluster.model.devices import get_device

H100 = get_device("h100")
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192)
WEIGHTS = ((4096, 4096), (8192, 8192), (28672, 4096))
SIZES = tuple(1024 * 4**step for step in range(9))


def gemm_points(*, seed: int = 0, noise: float = 0.0, fmt: str = "bf16", **truth: float):
    blank = [GemmPoint(m, n, k, fmt, 1.0) for m in TOKENS for n, k in WEIGHTS]
    seconds = gemm_s(blank, {"serial_s": 3e-10, **truth}, device=H100)
    factor = np.exp(np.random.default_rng(seed).normal(0.0, noise, len(blank)))
    return [
        GemmPoint(p.m, p.n, p.k, p.format, float(s))
        for p, s in zip(blank, seconds * factor, strict=True)
    ]


def link_points(
    *,
    latency_s: float,
    efficiency: float,
    exchange: float,
    domains: int = 1,
    noise: float = 0.0,
    seed: int = 0,
) -> list[CollectivePoint]:
    counts = (2, 4, 8) if domains == 1 else (domains,)
    blank = [
        CollectivePoint(kind, ranks, size, 1.0, domains > 1, LinkPath.NVLINK, domains)
        for kind in CollectiveKind
        for ranks in counts
        for size in SIZES
    ]
    truth = {"latency_s": latency_s, "efficiency": efficiency, "all_to_all": exchange}
    seconds = collective_s(
        blank,
        {**truth, "ring_s": 2e-6},
        bandwidth=H100.link_bandwidth if domains == 1 else H100.network_bandwidth,
    )
    seconds = seconds * np.exp(np.random.default_rng(seed).normal(0.0, noise, len(blank)))
    return [replace(point, seconds=float(s)) for point, s in zip(blank, seconds, strict=True)]


@settings(max_examples=25)
@given(
    mbu=st.floats(0.3, 0.95),
    mfu=st.floats(0.5, 0.95),
    half=st.floats(10.0, 100.0),
    floor_s=st.floats(1e-6, 6e-6),
    seed=st.integers(0, 99),
)
def test_a_gemm_curve_is_found_through_noise(mbu, mfu, half, floor_s, seed):
    points = gemm_points(seed=seed, noise=0.03, mbu=mbu, mfu=mfu, half_tokens=half, floor_s=floor_s)
    fit = fit_gemm(points, device=H100, family="hopper", floor_s=floor_s)
    found = fit.coefficients
    assert found["gemm.hopper.bf16.mbu"] == pytest.approx(mbu, rel=0.12)
    assert found["gemm.hopper.bf16.mfu"] == pytest.approx(mfu, rel=0.08)
    # A knee hidden behind the memory bound is hard to place, and does not matter: times do.
    truth = gemm_points(mbu=mbu, mfu=mfu, half_tokens=half, floor_s=floor_s)
    values = {name.rpartition(".")[2]: value for name, value in found.items()}
    predicted = gemm_s(truth, {**values, "floor_s": floor_s}, device=H100)
    assert predicted == pytest.approx([point.seconds for point in truth], rel=0.08)
    (report,) = fit.report.parts
    assert report.points == len(points)
    assert report.median_error < 0.05
    assert report.worst_error >= report.median_error


def test_an_outlier_is_reported_and_pulls_little():
    truth = {"mbu": 0.7, "mfu": 0.8, "half_tokens": 50.0, "floor_s": 3e-6}
    points = gemm_points(**truth)
    odd = points[4]
    points[4] = GemmPoint(odd.m, odd.n, odd.k, odd.format, odd.seconds * 6.0)
    fit = fit_gemm(points, device=H100, family="hopper")
    assert fit.coefficients["gemm.hopper.bf16.mbu"] == pytest.approx(0.7, rel=0.03)
    assert fit.coefficients["gemm.hopper.bf16.mfu"] == pytest.approx(0.8, rel=0.03)
    worst = fit.report.worst
    assert worst is not None
    assert worst.worst_point == str(points[4])
    assert worst.worst_error > 0.5


def test_formats_are_fitted_apart():
    truth = {"half_tokens": 50.0, "floor_s": 3e-6}
    points = gemm_points(mbu=0.7, mfu=0.8, **truth)
    points += gemm_points(mbu=0.5, mfu=0.6, fmt="fp8", **truth)
    fit = fit_gemm(points, device=H100, family="hopper", floor_s=3e-6)
    assert fit.coefficients["gemm.hopper.bf16.mfu"] == pytest.approx(0.8, rel=0.02)
    assert fit.coefficients["gemm.hopper.fp8.mfu"] == pytest.approx(0.6, rel=0.02)
    assert [part.part for part in fit.report.parts] == ["gemm.hopper.bf16", "gemm.hopper.fp8"]


def test_what_beats_the_peak_is_clipped_and_said():
    points = gemm_points(mbu=0.7, mfu=1.2, half_tokens=50.0, floor_s=3e-6)
    fit = fit_gemm(points, device=H100, family="hopper", floor_s=3e-6)
    assert fit.coefficients["gemm.hopper.bf16.mfu"] == 1.0
    assert fit.coefficients["gemm.hopper.bf16.mbu"] == pytest.approx(0.7, rel=0.05)
    (note,) = fit.report.notes
    assert "gemm.hopper.bf16" in note
    assert "mfu would be 1.2" in note


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (lambda p: p.m < 64, r"0 of \d+ points are bound by compute.*many tokens"),
        (lambda p: p.m > 1024, r"0 of \d+ points are bound by memory.*few tokens"),
        (lambda _: False, "no matrix products were measured"),
    ],
)
def test_a_missing_side_of_the_roofline_is_named(kept, said):
    points = gemm_points(mbu=0.7, mfu=0.8, half_tokens=50.0, floor_s=3e-6)
    with pytest.raises(InputError, match=said):
        fit_gemm([p for p in points if kept(p)], device=H100, family="hopper")


def test_a_format_without_a_peak_is_refused():
    with pytest.raises(InputError, match="no fp8 peak"):
        fit_gemm([GemmPoint(1, 64, 64, "fp8", 1e-5)], device=get_device("cpu"), family="cpu")


@settings(max_examples=25)
@given(
    latency=st.floats(1e-6, 3e-5),
    efficiency=st.floats(0.2, 0.95),
    exchange=st.floats(0.2, 0.95),
    seed=st.integers(0, 99),
)
def test_link_coefficients_are_found_through_noise(latency, efficiency, exchange, seed):
    values = {"latency_s": latency, "efficiency": efficiency, "exchange": exchange}
    points = link_points(**values, noise=0.05, seed=seed)
    points += link_points(**values, domains=4, noise=0.05, seed=seed)
    found = fit_links(points, device=H100, family="hopper").coefficients
    assert found["link.hopper.latency_s"] == pytest.approx(latency, rel=0.1)
    assert found["link.hopper.efficiency"] == pytest.approx(efficiency, rel=0.1)
    assert found["all_to_all.efficiency"] == pytest.approx(exchange, rel=0.15)
    assert found["network.latency_s"] == pytest.approx(latency, rel=0.15)
    assert set(found) == {
        "link.hopper.latency_s",
        "link.hopper.efficiency",
        "link.ring_s",
        "all_to_all.efficiency",
        "network.latency_s",
        "network.efficiency",
    }


def test_only_what_was_measured_is_fitted():
    points = link_points(latency_s=5e-6, efficiency=0.7, exchange=0.4)
    reduces = [p for p in points if p.kind is CollectiveKind.ALL_REDUCE]
    found = fit_links(reduces, device=H100, family="hopper").coefficients
    assert set(found) == {"link.hopper.latency_s", "link.hopper.efficiency", "link.ring_s"}
    exchanges = [p for p in points if p.kind is CollectiveKind.ALL_TO_ALL]
    found = fit_links(exchanges, device=H100, family="hopper").coefficients
    assert set(found) == {"link.hopper.latency_s", "all_to_all.efficiency"}


def test_too_few_sizes_cannot_tell_latency_from_bandwidth():
    points = link_points(latency_s=5e-6, efficiency=0.7, exchange=0.4)
    with pytest.raises(InputError, match=r"link\.hopper: .* 2 size"):
        fit_links([p for p in points if p.bytes < 5000], device=H100, family="hopper")
    with pytest.raises(InputError, match="no collective was measured"):
        fit_links([], device=H100, family="hopper")


@pytest.mark.parametrize("kind", CollectiveKind)
@pytest.mark.parametrize(("ranks", "domains"), [(2, 1), (8, 1), (4, 4)])
def test_no_collective_beats_its_link(kind, ranks, domains):
    points = [
        CollectivePoint(kind, ranks, s, 1.0, domains > 1, LinkPath.SHM, domains) for s in SIZES
    ]
    seconds = collective_s(points, {"latency_s": 5e-6}, bandwidth=100e9)
    sent = np.array(SIZES) * (0.5 if kind is not CollectiveKind.SEND_RECV else 1.0)
    assert np.all(seconds > sent / 100e9)  # at least half of the bytes leave a device
    assert np.all(np.diff(seconds) > 0.0)
    assert np.all(seconds > 2e-6)


def test_an_all_gather_of_two_is_what_it_is_by_hand():
    point = CollectivePoint(CollectiveKind.ALL_GATHER, 2, 2**20, 1.0, True, LinkPath.NETWORK, 2)
    (seconds,) = collective_s([point], {"latency_s": 17e-6}, bandwidth=25e9)
    assert seconds == pytest.approx(17e-6 + 2**19 / 25e9)


def test_the_floor_is_the_captured_launch_where_there_is_one():
    eager = [LaunchPoint(False, 5e-6)]
    assert fit_floor(eager, family="cpu").coefficients == {"kernel.cpu.small_s": 5e-6}
    both = fit_floor([*eager, LaunchPoint(True, 2e-6)], family="hopper")
    assert both.coefficients == {"kernel.hopper.small_s": 2e-6}
    assert both.report.observed == {"launch_eager_s": 5e-6}
    with pytest.raises(InputError, match="no kernel launch"):
        fit_floor([], family="cpu")


def peer(size: int, *, link: LinkPath, bandwidth: float, latency: float) -> PeerPoint:
    return PeerPoint(0, 1, size, latency + size / bandwidth, link)


def test_the_switching_point_is_where_nvlink_pulls_ahead():
    points = [peer(s, link=LinkPath.NVLINK, bandwidth=400e9, latency=10e-6) for s in SIZES]
    points += [peer(s, link=LinkPath.SHM, bandwidth=25e9, latency=10e-6) for s in SIZES]
    switch = nvlink_switch_bytes(points, factor=2.0)
    assert switch is not None
    # By hand: 10e-6 + s/25e9 = 2 * (10e-6 + s/400e9) at s = 10e-6 / (1/25e9 - 2/400e9).
    assert switch == pytest.approx(10e-6 / (1 / 25e9 - 2 / 400e9), rel=0.2)
    assert nvlink_switch_bytes(points, factor=1.5) < switch
    assert nvlink_switch_bytes(points, factor=20.0) is None
    assert nvlink_pairs(points) == ((0, 1),)


def test_no_switching_point_without_nvlink_or_without_another_path():
    pcie = [peer(s, link=LinkPath.PCIE, bandwidth=25e9, latency=10e-6) for s in SIZES]
    link = [peer(s, link=LinkPath.NVLINK, bandwidth=400e9, latency=10e-6) for s in SIZES]
    assert nvlink_switch_bytes(pcie) is None
    assert nvlink_switch_bytes(link) is None
    assert nvlink_switch_bytes([]) is None
    always = [peer(s, link=LinkPath.SHM, bandwidth=25e9, latency=90e-6) for s in SIZES]
    assert nvlink_switch_bytes([*link, *always]) == SIZES[0]


def test_copies_give_the_bandwidth_of_large_ones():
    points = [CopyPoint(size, 8e-6 + size / 50e9) for size in SIZES]
    assert copy_bandwidth(points) == pytest.approx(50e9, rel=0.02)
    with pytest.raises(InputError, match="no copy"):
        copy_bandwidth([])


def test_a_node_is_fitted_as_a_whole():
    found = Measurements(
        node="a",
        device="H100",
        kind="gpu",
        devices=8,
        gemm=tuple(gemm_points(mbu=0.7, mfu=0.8, half_tokens=50.0, floor_s=2e-6)),
        launches=(LaunchPoint(True, 2e-6), LaunchPoint(False, 5e-6)),
        copies=tuple(CopyPoint(size, 2e-6 + size / 1.4e12) for size in SIZES),
        notes=("cut short",),
    )
    alone = fit_measurements(found, device=H100, family="hopper")
    assert "link.hopper.efficiency" not in alone.coefficients
    assert any("links keep their coefficients" in note for note in alone.report.notes)
    assert "cut short" in alone.report.notes
    assert alone.report.observed["memory_bandwidth"] == pytest.approx(2.8e12, rel=0.02)
    points = tuple(link_points(latency_s=5e-6, efficiency=0.7, exchange=0.4))
    merged = Measurements.merged([found, found])
    assert len(merged.gemm) == 2 * len(found.gemm)
    assert merged.devices == 16
    whole = fit_links(points, device=H100, family="hopper").coefficients
    assert set(whole).isdisjoint(alone.coefficients)


def test_unlike_nodes_are_not_merged():
    one = Measurements(node="a", device="H100", kind="gpu", devices=8)
    other = Measurements(node="b", device="A100", kind="gpu", devices=8)
    with pytest.raises(InputError, match="A100, H100"):
        Measurements.merged([one, other])
    with pytest.raises(InputError, match="no node"):
        Measurements.merged([])


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_must_be_a_time(seconds):
    with pytest.raises(InputError, match="positive number of seconds"):
        GemmPoint(1, 1, 1, "bf16", seconds)
