"""How long does a collective take on a group of devices? Alpha-beta, hierarchical across nodes.

t = alpha + bytes / (efficiency * bandwidth), with the ring's share of bytes per device:
all-reduce 2(n-1)/n, all-gather and reduce-scatter (n-1)/n, all-to-all (n-1)/n of what a device
sends (Thakur, Rabenseifner, Gropp 2005). A group that leaves the scale-up domain works in two
levels: scatter inside the domain, exchange 1/n_local of the bytes over each device's NIC, gather.
Alpha grows slowly with n: engines use one-shot kernels for small messages (H100 under a CUDA
graph, 8 KiB: 2.8 us at n=2, 3.5..5.1 us at n=8).

Shapes: sizes and group arrays (n,), result (n,) seconds. A group of one costs nothing.
Invariants: monotone in bytes; a group inside one domain never costs more than one that leaves it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.coefficients import Coefficients
from cluster.model.hardware import Device

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """Links as collectives see them: bytes/s one direction after efficiency, seconds of latency."""

    link_bandwidth: float
    link_latency_s: float
    all_to_all_bandwidth: float
    network_bandwidth: float
    network_latency_s: float


@dataclass(frozen=True, kw_only=True)
class Ring:
    """A communicator per layout: `ranks` devices, `local` of them in one domain. Shapes (n,)."""

    ranks: Floats
    local: Floats

    @property
    def domains(self) -> Floats:
        """Scale-up domains the group touches."""
        return np.ceil(self.ranks / self.local)


def fabric_of(device: Device, coefficients: Coefficients) -> Fabric:
    """The links of `device` after the efficiencies of `coefficients`."""
    return Fabric(
        link_bandwidth=device.link_bandwidth * coefficients.link_efficiency,
        link_latency_s=device.link_latency_s * coefficients.captured_alpha,
        all_to_all_bandwidth=device.link_bandwidth * coefficients.all_to_all_efficiency,
        network_bandwidth=device.network_bandwidth * coefficients.network_efficiency,
        network_latency_s=device.network_latency_s,
    )


def ring(ranks: Floats, stride: Floats, *, domain: int) -> Ring:
    """A group of `ranks` devices, `stride` device numbers apart, on domains of `domain`."""
    local = np.clip(np.floor(domain / stride), 1.0, ranks)
    return Ring(ranks=ranks, local=local)


def all_reduce(size: Floats, group: Ring, fabric: Fabric) -> Floats:
    """Sum `size` bytes over the group, the result on every rank."""
    inside = 2.0 * _share(group.local) * size / fabric.link_bandwidth
    across = 2.0 * _share(group.domains) * size / group.local / fabric.network_bandwidth
    return inside + across + _alpha(group, fabric, rounds=2.0)


def all_gather(size: Floats, group: Ring, fabric: Fabric) -> Floats:
    """Every rank ends with all `size` bytes, of which it had 1/ranks."""
    inside = _share(group.local) * size / fabric.link_bandwidth
    across = _share(group.domains) * size / group.local / fabric.network_bandwidth
    return inside + across + _alpha(group, fabric, rounds=1.0)


def reduce_scatter(size: Floats, group: Ring, fabric: Fabric) -> Floats:
    """Sum `size` bytes over the group, 1/ranks of the result on each rank."""
    return all_gather(size, group, fabric)


def all_to_all(size: Floats, group: Ring, fabric: Fabric) -> Floats:
    """Every rank sends `size` bytes, an equal share to each rank. Both link levels run at once."""
    inside = (group.local - 1.0) / group.ranks * size / fabric.all_to_all_bandwidth
    across = (group.ranks - group.local) / group.ranks * size / fabric.network_bandwidth
    # DeepEP low-latency, H100: 14 us at EP8 rising to 32..43 us at EP32, 8 tokens.
    return np.maximum(inside, across) + 2.0 * _alpha(group, fabric, rounds=1.0)


def send_recv(size: Floats, *, leaves_domain: NDArray[np.bool_], fabric: Fabric) -> Floats:
    """One device hands `size` bytes to the next pipeline stage."""
    inside = size / fabric.link_bandwidth + fabric.link_latency_s
    across = size / fabric.network_bandwidth + fabric.network_latency_s
    return np.where(leaves_domain, across, inside)


def _share(ranks: Floats) -> Floats:
    return (ranks - 1.0) / ranks


def _alpha(group: Ring, fabric: Fabric, *, rounds: float) -> Floats:
    inside = np.where(group.local > 1.0, 1.0 + 0.25 * np.log2(group.local), 0.0)
    across = rounds * np.ceil(np.log2(group.domains))
    return np.asarray(fabric.link_latency_s * inside + fabric.network_latency_s * across)
