"""Which layouts a group of nodes can hold: the grid, the devices, the scale-up domains, the batch.

A TP group lies within one scale-up domain (NVLink, xGMI) unless cross-domain tp is asked for, and
TP groups that do not divide a domain leave devices of it over.
"""

from __future__ import annotations

import numpy as np

from cluster.model.hardware import NodeGroup
from cluster.model.layout import Ints, Layout, LayoutTable
from cluster.model.rule_kinds import Floats, Rule, Shape, limit_margin, multiple_margin


def tp_groups(group: NodeGroup, tp: Ints) -> Ints:
    """How many TP groups of `tp` devices a group of nodes holds, none across a domain, shape (n,).

    Beyond the size of a domain there is nothing to respect: devices // tp.
    """
    unit = group.devices if group.device.domain_spans_nodes else group.devices_per_node
    domain = group.domain_devices
    per_unit = unit // domain * (domain // tp) + unit % domain // tp
    return np.where(tp > domain, group.devices // tp, group.devices // unit * per_unit)


def _degrees(_: Shape, table: LayoutTable) -> Floats:
    columns = (table.tp, table.dp, table.pp, table.moe_tp, table.moe_ep, table.replicas)
    limits = (table.max_num_seqs, table.max_num_batched_tokens)
    return np.asarray(np.minimum.reduce([*columns, *limits]) - 1.0, dtype=np.float64)


def _explain_degrees(_: Shape, layout: Layout) -> tuple[str, str]:
    names = ("tp", "dp", "pp", "moe_tp", "moe_ep", "replicas", "max_num_seqs")
    small = [
        f"{name} = {getattr(layout, name)}"
        for name in (*names, "max_num_batched_tokens")
        if getattr(layout, name) < 1
    ]
    return f"{', '.join(small)}: every degree is at least 1.", "write 1 for what is not cut."


def _grid(_: Shape, table: LayoutTable) -> Floats:
    attention, experts = table.tp * table.dp, table.moe_tp * table.moe_ep
    return np.asarray(-np.abs(attention - experts) / np.maximum(attention, 1), dtype=np.float64)


def _explain_grid(_: Shape, layout: Layout) -> tuple[str, str]:
    attention, experts = layout.tp * layout.dp, layout.moe_tp * layout.moe_ep
    return (
        f"attention runs on tp*dp = {layout.tp}*{layout.dp} = {attention} devices, experts on "
        f"moe_tp*moe_ep = {layout.moe_tp}*{layout.moe_ep} = {experts}; they are the same devices.",
        f"make moe_tp*moe_ep = {attention}.",
    )


def _devices(shape: Shape, table: LayoutTable) -> Floats:
    # One replica lies within one group of equal nodes, so the group is the limit for all of them.
    return limit_margin(table.devices_per_replica * table.replicas, limit=shape.group.devices)


def _explain_devices(shape: Shape, layout: Layout) -> tuple[str, str]:
    group = shape.group
    fit = group.devices // max(layout.devices_per_replica, 1)
    return (
        f"{layout.replicas} replica(s) of tp*dp*pp = {layout.tp}*{layout.dp}*{layout.pp} = "
        f"{layout.devices_per_replica} need {layout.devices} devices, the group of "
        f"{group.nodes}x{group.devices_per_node} {group.device.name} has {group.devices}.",
        f"use at most {fit} replica(s) of this shape."
        if fit
        else "lower tp, dp or pp, or add nodes.",
    )


def _domain(shape: Shape, table: LayoutTable) -> Floats:
    if shape.cross_domain_tp:
        return np.zeros(len(table))
    return limit_margin(table.tp, limit=shape.group.domain_devices)


def _explain_domain(shape: Shape, layout: Layout) -> tuple[str, str]:
    domain = shape.group.domain_devices
    return (
        f"tp = {layout.tp} leaves the scale-up domain of {domain} {shape.group.device.name}: its "
        "all-reduces would cross the network in every layer.",
        f"use tp <= {domain} with more pp or dp, or ask for cross-domain tp.",
    )


def _packing(shape: Shape, table: LayoutTable) -> Floats:
    # TP groups that do not divide a domain leave devices over in each.
    fit = tp_groups(shape.group, np.maximum(table.tp, 1))
    need = table.dp * table.pp * table.replicas
    margin = (fit - need) / np.maximum(fit, 1)
    # Beyond the group, or beyond a domain, the rules on devices and domain speak.
    silent = table.devices_per_replica * table.replicas > shape.group.devices
    silent |= table.tp > shape.group.domain_devices
    return np.where(silent, 0.0, margin)


def _explain_packing(shape: Shape, layout: Layout) -> tuple[str, str]:
    domain = shape.group.domain_devices
    fit = int(tp_groups(shape.group, np.asarray([layout.tp]))[0])
    need = layout.dp * layout.pp * layout.replicas
    return (
        f"{need} TP groups of {layout.tp} are needed, but only {fit} fit into the scale-up domains "
        f"of {domain} devices without crossing one.",
        f"use a tp that divides {domain}, or at most {fit} TP groups (dp*pp*replicas).",
    )


def _batch(_: Shape, table: LayoutTable) -> Floats:
    return multiple_margin(table.max_num_seqs, of=table.dp)


def _explain_batch(_: Shape, layout: Layout) -> tuple[str, str]:
    rest = layout.max_num_seqs % layout.dp
    below = layout.max_num_seqs - rest
    return (
        f"max_num_seqs = {layout.max_num_seqs} is no multiple of dp = {layout.dp} (remainder "
        f"{rest}).",
        f"use {below} or {below + layout.dp}." if below else f"use {layout.dp}.",
    )


GROUP_RULES: tuple[Rule, ...] = (
    Rule("degrees", _degrees, _explain_degrees),
    Rule("grid", _grid, _explain_grid),
    Rule("devices", _devices, _explain_devices),
    Rule("domain", _domain, _explain_domain),
    Rule("packing", _packing, _explain_packing),
    Rule("batch", _batch, _explain_batch),
)
