"""How long does a collective take on a group of devices? Alpha-beta, hierarchical across nodes.

Inside a scale-up domain an all-reduce of S bytes over n devices takes the faster of two kernels:
one-shot, alpha + (n-1) S / (one_shot * link), where every device reads all; and two-shot (ring,
NVLS), alpha + ring + 2 (n-1)/n S / (efficiency * link). All-gather and reduce-scatter move
(n-1)/n S once, all-to-all the share that leaves a device (Thakur, Rabenseifner, Gropp 2005).
Alpha is that of eight devices under a CUDA graph, times 0.55 + 0.15 log2 n (measured on H100 and
B200, aiconfigurator 0.12's tables: 2.8, 3.1, 3.5 us for 2, 4, 8).
A group that leaves the domain works in two levels: scatter inside it, exchange 1/n_local of the
bytes over each device's NIC, gather. In an all-to-all both levels run at once, and a token that
several experts of one remote domain want crosses the network once (DeepEP's forwarding).

Shapes: sizes and group arrays (n,), result (n,) seconds. A group of one costs nothing.
Invariants: monotone in bytes; a group inside one domain never costs more than one that leaves it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """Links as collectives see them: bytes/s one direction after efficiency, seconds of latency.

    Numbers or (n,). `link_latency_s` is a collective's over eight devices.
    """

    one_shot_bandwidth: Floats
    link_bandwidth: Floats
    link_latency_s: Floats
    ring_s: float
    all_to_all_bandwidth: Floats
    network_bandwidth: Floats
    network_latency_s: Floats


@dataclass(frozen=True, kw_only=True)
class Ring:
    """A communicator per layout: `ranks` devices, `local` of them in one domain. Shapes (n,)."""

    ranks: Floats
    local: Floats

    @property
    def domains(self) -> Floats:
        """Scale-up domains the group touches."""
        return np.ceil(self.ranks / self.local)


def ring(ranks: Floats, stride: Floats, *, domain: Floats | float) -> Ring:
    """A group of `ranks` devices, `stride` device numbers apart, on domains of `domain`."""
    local = np.clip(np.floor(domain / stride), 1.0, ranks)
    return Ring(ranks=ranks, local=local)


def all_reduce(size: Floats, group: Ring, fabric: Fabric) -> Floats:
    """Sum `size` bytes over the group, the result on every rank."""
    one_shot = (group.local - 1.0) * size / fabric.one_shot_bandwidth
    two_shot = fabric.ring_s + 2.0 * _share(group.local) * size / fabric.link_bandwidth
    inside = _alpha(group, fabric) + np.minimum(one_shot, two_shot)
    across = 2.0 * _network(size / group.local, group, fabric)
    return np.where(group.local > 1.0, inside, 0.0) + across


def all_gather(size: Floats, group: Ring, fabric: Fabric) -> Floats:
    """Every rank ends with all `size` bytes, of which it had 1/ranks."""
    inside = _alpha(group, fabric) + _share(group.local) * size / fabric.link_bandwidth
    across = _network(size / group.local, group, fabric)
    return np.where(group.local > 1.0, inside, 0.0) + across


def reduce_scatter(size: Floats, group: Ring, fabric: Fabric) -> Floats:
    """Sum `size` bytes over the group, 1/ranks of the result on each rank."""
    return all_gather(size, group, fabric)


def all_to_all(size: Floats, copies: Floats, group: Ring, fabric: Fabric) -> Floats:
    """Every rank sends `copies` copies of its `size` bytes, each to a rank of its own, evenly."""
    inside = copies * (group.local - 1.0) / group.ranks * size / fabric.all_to_all_bandwidth
    remote = group.domains - 1.0
    # Expected remote domains that at least one copy goes to.
    reached = remote * (1.0 - (1.0 - 1.0 / group.domains) ** copies)
    across = reached * size / fabric.network_bandwidth
    latency = np.where(group.local > 1.0, 2.0 * _alpha(group, fabric), 0.0)
    latency = latency + np.where(remote > 0.0, 2.0 * fabric.network_latency_s, 0.0)
    return np.where(group.ranks > 1.0, np.maximum(inside, across) + latency, 0.0)


def send_recv(size: Floats, *, leaves_domain: NDArray[np.bool_], fabric: Fabric) -> Floats:
    """One device hands `size` bytes to the next pipeline stage."""
    inside = size / fabric.link_bandwidth + fabric.link_latency_s
    across = size / fabric.network_bandwidth + fabric.network_latency_s
    return np.where(leaves_domain, across, inside)


def _network(size: Floats, group: Ring, fabric: Fabric) -> Floats:
    """One exchange of `size` bytes per device among the domains of the group."""
    rounds = np.ceil(np.log2(group.domains))
    return np.asarray(
        _share(group.domains) * size / fabric.network_bandwidth + rounds * fabric.network_latency_s
    )


def _share(ranks: Floats) -> Floats:
    return (ranks - 1.0) / ranks


def _alpha(group: Ring, fabric: Fabric) -> Floats:
    return np.asarray(fabric.link_latency_s * (0.55 + 0.15 * np.log2(group.local)))
