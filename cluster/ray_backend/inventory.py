"""What does this machine offer? The `local` cluster of the command line.

With NVIDIA GPUs (seen through NVML) the cluster is those GPUs; otherwise one `cpu` device per
core, its memory an equal share of the machine's.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from cluster.errors import UnavailableError
from cluster.model.devices import DEVICES, get_device
from cluster.model.hardware import ClusterSpec, Device, NodeGroup


def local_cluster() -> ClusterSpec:
    """This machine as a cluster of one node."""
    group = _gpu_group() or cpu_group()
    return ClusterSpec(name="local", groups=(group,))


def cpu_group() -> NodeGroup:
    """This machine's cores as devices, whether or not it has GPUs."""
    cores = len(os.sched_getaffinity(0))
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    device = replace(get_device("cpu"), memory_bytes=memory / cores, domain=cores)
    return NodeGroup(nodes=1, devices_per_node=cores, device=device)


def _gpu_group() -> NodeGroup | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        names = [_gpu_name(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return None  # no driver on this machine: not an error, the CPUs are the cluster
    if not names:
        return None
    if len(set(names)) > 1:
        raise UnavailableError(
            f"this machine mixes GPUs ({', '.join(sorted(set(names)))}), `local` describes one "
            "kind. Fix: pass a cluster file that names the groups."
        )
    return NodeGroup(nodes=1, devices_per_node=len(names), device=_match(names[0]))


def _gpu_name(pynvml: Any, index: int) -> str:
    name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))
    return name.decode() if isinstance(name, bytes) else str(name)


def _match(product: str) -> Device:
    """The catalogue entry whose name occurs in NVML's product name, the longest first."""
    flat = product.lower().replace(" ", "-")
    for name in sorted(DEVICES, key=len, reverse=True):
        if name in flat:
            return DEVICES[name]
    raise UnavailableError(
        f"this machine's GPU is '{product}', which is not in the hardware catalogue "
        f"({', '.join(sorted(DEVICES))}). Fix: describe it in a cluster file."
    )


def device_of(product: str, *, kind: str) -> Device:
    """The catalogue's entry of a measured product: any CPU is `cpu`, a GPU is known by its name.

    Raises UnavailableError for a GPU the catalogue does not have.
    """
    return get_device("cpu") if kind == "cpu" else _match(product)
