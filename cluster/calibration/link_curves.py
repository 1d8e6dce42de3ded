"""Which link coefficients do measured collectives mean, and from where on does NVLink pay?

The formulas are the cost model's own functions (`cluster.costmodel.collectives`), so that a fit
undoes exactly what an estimate does. What NCCL and gloo cannot show stays as it was: the one-shot
all-reduce that engines bring themselves (`link.<family>.one_shot`).

Invariants: efficiencies lie in (0, 1]; a coefficient is returned only if points determine it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from cluster.calibration.points import CollectiveKind, CollectivePoint, LinkPath, PeerPoint
from cluster.calibration.robust import Fit, Floats, Parameter, fit_times
from cluster.costmodel import collectives
from cluster.errors import InputError
from cluster.model.hardware import Device

_NO_ONE_SHOT = 1e-3
"""Bytes/s at which reading from every device never pays: NCCL and gloo have no such kernel."""


def fit_links(points: Sequence[CollectivePoint], *, device: Device, family: str) -> Fit:
    """`link.<family>.*`, `link.ring_s`, `all_to_all.efficiency`, `network.*`, as far as measured.

    Of the groups over several domains those with one rank in each speak for the network. Raises
    InputError for no points, or for sizes that cannot tell latency from bandwidth.
    """
    inside = [point for point in points if not point.crosses_domain]
    across = [p for p in points if p.crosses_domain and p.ranks == p.domains]
    if not inside and not across:
        raise InputError(
            "no collective was measured. Fix: run the collective benchmark on two devices or more."
        )
    fits = []
    if inside:
        fits.append(_fit_level(inside, f"link.{family}", bandwidth=device.link_bandwidth))
    if across:
        fits.append(_fit_level(across, "network", bandwidth=device.network_bandwidth))
    return Fit.joined(fits)


def _fit_level(points: Sequence[CollectivePoint], part: str, *, bandwidth: float) -> Fit:
    """One level of links: a domain's, where all-to-all has its own efficiency, or the network."""
    sizes = sorted({point.bytes for point in points})
    if len(sizes) < 3 or sizes[-1] < 64 * sizes[0]:
        raise InputError(
            f"{part}: collectives were measured at {len(sizes)} size(s), {sizes[0]} to {sizes[-1]} "
            "bytes; latency and bandwidth need 3 sizes or more, the largest 64 times the smallest. "
            "Fix: measure more sizes, or give the benchmark a larger budget."
        )
    kinds = {point.kind for point in points}
    unknown = [Parameter(name="latency_s", start=1e-5, low=1e-8, high=1.0)]
    if part == "network" or kinds != {CollectiveKind.ALL_TO_ALL}:
        unknown.append(Parameter(name="efficiency", start=0.5, fraction=True))
    if part != "network" and CollectiveKind.ALL_TO_ALL in kinds:
        unknown.append(Parameter(name="all_to_all", start=0.5, fraction=True))
    if part != "network" and CollectiveKind.ALL_REDUCE in kinds:
        unknown.append(Parameter(name="ring_s", start=1e-6, hold=0.01, low=1e-9, high=1.0))

    def model(values: Mapping[str, float]) -> Floats:
        return collective_s(points, values, bandwidth=bandwidth)

    fit = fit_times(
        part, points, seconds=[p.seconds for p in points], parameters=unknown, model=model
    )
    names = {"all_to_all": "all_to_all.efficiency", "ring_s": "link.ring_s"}
    named = fit.named(
        part,
        {names.get(name, f"{part}.{name}"): value for name, value in fit.coefficients.items()},
    )
    paths = ", ".join(sorted({str(point.path) for point in points}))
    return named.noted(f"{part}: measured over {paths}.")


def collective_s(
    points: Sequence[CollectivePoint], values: Mapping[str, float], *, bandwidth: float
) -> Floats:
    """Seconds the cost model gives the points, (n,), all inside a domain or all across domains.

    `bandwidth` (bytes/s) is that of the level; `values` has its `latency_s` and, as far as the
    points need them, `efficiency`, `all_to_all` (efficiency) and `ring_s` (added to an all-reduce).
    """
    ranks = np.array([float(point.ranks) for point in points])
    crossing = np.array([point.crosses_domain for point in points])
    size = np.array([float(point.bytes) for point in points])
    group = collectives.Ring(ranks=ranks, local=np.where(crossing, 1.0, ranks))
    reached = np.array([bandwidth * values.get("efficiency", 1.0)])
    latency = np.array([values["latency_s"]])
    fabric = collectives.Fabric(
        one_shot_bandwidth=np.array([_NO_ONE_SHOT]),
        link_bandwidth=reached,
        link_latency_s=latency,
        ring_s=values.get("ring_s", 0.0),
        all_to_all_bandwidth=np.array([bandwidth * values.get("all_to_all", 1.0)]),
        network_bandwidth=reached,
        network_latency_s=latency,
    )
    every = {
        CollectiveKind.ALL_REDUCE: collectives.all_reduce(size, group, fabric),
        CollectiveKind.ALL_GATHER: collectives.all_gather(size, group, fabric),
        CollectiveKind.REDUCE_SCATTER: collectives.reduce_scatter(size, group, fabric),
        CollectiveKind.ALL_TO_ALL: collectives.all_to_all(size, np.ones(1), group, fabric),
        CollectiveKind.SEND_RECV: collectives.send_recv(
            size, leaves_domain=crossing, fabric=fabric
        ),
    }
    return np.array([every[point.kind][index] for index, point in enumerate(points)])


def nvlink_pairs(points: Sequence[PeerPoint]) -> tuple[tuple[int, int], ...]:
    """The device pairs that NVLink connects, in order."""
    return tuple(sorted({(p.source, p.target) for p in points if p.path is LinkPath.NVLINK}))


def nvlink_switch_bytes(points: Sequence[PeerPoint], *, factor: float = 2.0) -> float | None:
    """From which message size on NVLink is `factor` times as fast as the best other path.

    Medians over pairs; between two sizes the crossing is interpolated in log space. None if no pair
    has NVLink, nothing was measured beside it, or it never gets that far ahead.
    """
    ahead = []
    for size in sorted({point.bytes for point in points}):
        times = {
            path: median(p.seconds for p in points if p.bytes == size and p.path is path)
            for path in {p.path for p in points if p.bytes == size}
        }
        link = times.pop(LinkPath.NVLINK, None)
        if link is not None and times:
            ahead.append((size, min(times.values()) / link))
    behind = [index for index, (_, ratio) in enumerate(ahead) if ratio < factor]
    first = behind[-1] + 1 if behind else 0  # from here on always ahead
    if first == len(ahead):
        return None
    if first == 0:
        return float(ahead[0][0])
    (low, before), (high, after) = ahead[first - 1], ahead[first]
    part = math.log(factor / before) / math.log(after / before)
    return float(low * (high / low) ** part)
