"""How do the degrees of many layouts lie on the devices of one group? Columns for the formulas.

Ranks are numbered tensor-parallel innermost, then data-parallel, then pipeline: a group with
stride s and n ranks stays in a scale-up domain of d devices while s * n <= d.
Invariants: all arrays have shape (n,), n = number of layouts, and are floats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.collectives import Fabric, Ring, fabric_of, ring
from cluster.model.hardware import Device, NodeGroup
from cluster.model.layout import LayoutTable

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Degrees as floats, and the communicators they make."""

    device: Device
    fabric: Fabric
    coefficients: Coefficients
    tp: Floats
    dp: Floats
    pp: Floats
    moe_tp: Floats
    moe_ep: Floats
    devices: Floats
    tp_ring: Ring
    dp_ring: Ring
    moe_tp_ring: Ring
    moe_ep_ring: Ring
    stage_leaves_domain: NDArray[np.bool_]


def make_grid(group: NodeGroup, table: LayoutTable, coefficients: Coefficients) -> Grid:
    """Columns of `table` on the devices of `group`."""
    tp, dp, pp = (np.asarray(column, dtype=np.float64) for column in (table.tp, table.dp, table.pp))
    moe_tp = np.asarray(table.moe_tp, dtype=np.float64)
    moe_ep = np.asarray(table.moe_ep, dtype=np.float64)
    domain = group.domain_devices
    one = np.ones_like(tp)
    return Grid(
        device=group.device,
        fabric=fabric_of(group.device, coefficients),
        coefficients=coefficients,
        tp=tp,
        dp=dp,
        pp=pp,
        moe_tp=moe_tp,
        moe_ep=moe_ep,
        devices=tp * dp * pp,
        tp_ring=ring(tp, one, domain=domain),
        dp_ring=ring(dp, tp, domain=domain),
        moe_tp_ring=ring(moe_tp, one, domain=domain),
        moe_ep_ring=ring(moe_ep, moe_tp, domain=domain),
        stage_leaves_domain=tp * dp * pp > domain,
    )
