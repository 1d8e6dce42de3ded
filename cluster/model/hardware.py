"""Devices and clusters as plain data. The table of known devices is `cluster.model.devices`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from cluster.model.formats import NumberFormat


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator (or one CPU core). Rates are peak; bandwidths in bytes/s, one direction.

    `flops` maps a number format to dense operations/s; a format that is missing is computed in
    the widest one present. `domain` is how many devices share the scale-up link (NVLink, xGMI,
    PCIe switch, or the memory bus of a CPU); it ends at the node unless `domain_spans_nodes`
    (NVL72). `price_per_hour` is USD per device, None = unknown.
    """

    name: str
    memory_bytes: float
    memory_bandwidth: float
    flops: Mapping[NumberFormat, float]
    link_bandwidth: float
    link_latency_s: float
    domain: int
    network_bandwidth: float
    network_latency_s: float
    host_bandwidth: float
    power_w: float
    launch_overhead_s: float
    reserved_bytes: float
    price_per_hour: float | None = None
    kind: str = "gpu"  # "gpu" or "cpu": which Ray resource a bundle asks for
    source: str = ""
    domain_spans_nodes: bool = False

    def __getstate__(self) -> dict[str, object]:
        # Read-only mappings are not pickled, and devices travel to the workers of a search.
        return {**self.__dict__, "flops": dict(self.flops)}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.__dict__["flops"] = MappingProxyType(self.__dict__["flops"])


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """`nodes` equal nodes of `devices_per_node` devices."""

    nodes: int
    devices_per_node: int
    device: Device

    @property
    def devices(self) -> int:
        """Devices in the group."""
        return self.nodes * self.devices_per_node

    @property
    def domain_devices(self) -> int:
        """Devices of this group that one device reaches over its scale-up link, itself included."""
        reach = self.devices if self.device.domain_spans_nodes else self.devices_per_node
        return min(self.device.domain, reach)


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """A cluster: groups of equal nodes. A replica never spans two groups."""

    name: str
    groups: tuple[NodeGroup, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def devices(self) -> int:
        """Devices in all groups."""
        return sum(group.devices for group in self.groups)
