"""What is evaluated: a model, an engine and devices, under many layouts; or many of these at once.

`make_case` puts one model on one group of devices under n layouts: model columns are (k, 1), layout
columns (n,). `stack` puts cases side by side into one whose every column is (k, n) or (n,), which
is how thousands of measured runs are predicted in one pass of the formulas.

Ranks are numbered tensor-parallel innermost, then data-parallel, then pipeline: a group with
stride s and n ranks stays in a scale-up domain of d devices while s * n <= d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.chain import GROUPED, LATENT, LINEAR, Chain, Cores, lower_cores
from cluster.costmodel.chain import lower_operators as lower_chain
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.collectives import Fabric, Ring, ring
from cluster.costmodel.engine import Engine, engine_positions
from cluster.costmodel.families import compute_format, family_of
from cluster.model.formats import NumberFormat
from cluster.model.hardware import NodeGroup
from cluster.model.layout import LayoutTable
from cluster.model.model_spec import ModelSpec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Degrees as floats, (n,), and the communicators they make. A dense model spreads nothing."""

    tp: Floats
    dp: Floats
    pp: Floats
    moe_tp: Floats
    moe_ep: Floats
    devices: Floats
    domain: Floats

    @property
    def tp_ring(self) -> Ring:
        """Ranks that share a data-parallel rank's matrices."""
        return ring(self.tp, np.ones_like(self.tp), domain=self.domain)

    @property
    def moe_tp_ring(self) -> Ring:
        """Ranks that share an expert's matrices."""
        return ring(self.moe_tp, np.ones_like(self.tp), domain=self.domain)

    @property
    def moe_ep_ring(self) -> Ring:
        """Ranks over which the experts are spread."""
        return ring(self.moe_ep, self.moe_tp, domain=self.domain)

    @property
    def stage_leaves_domain(self) -> NDArray[np.bool_]:
        """Whether pipeline stages hand over across domains."""
        return self.devices > self.domain


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The device as columns, (1,) or (n,): rates before efficiency, and positions of coefficients.

    `peak` is 16-bit (attention). `cpu` marks devices whose activations are 32 bits wide.
    """

    memory_bandwidth: Floats
    link_bandwidth: Floats
    network_bandwidth: Floats
    network_latency_s: Floats
    host_bandwidth: Floats
    peak: Floats
    cpu: NDArray[np.bool_]
    link_efficiency: Ints
    one_shot: Ints
    small_s: Ints
    fp8_share: Ints

    @property
    def width(self) -> Floats:
        """Bytes of an activation element: 16 bits on an accelerator, 32 on a CPU."""
        return np.where(self.cpu, 4.0, 2.0)


@dataclass(frozen=True, kw_only=True)
class Body:
    """What the formulas ask of a model besides operators and cores, (1,) or (n,).

    `tp_norms`: norms of all layers that tensor parallelism has to reduce;
    `eight_bits`: experts are stored in at most 8 bits, so that tokens travel to them as fp8.
    """

    hidden: Floats
    vocab: Floats
    experts: Floats
    chosen: Floats
    layers: Floats
    moe_layers: Floats
    grouped_layers: Floats
    latent_layers: Floats
    linear_layers: Floats
    indexed_layers: Floats
    operators: Floats
    tp_norms: Floats
    kv_bytes: Floats
    eight_bits: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One evaluation: n layouts of one model, or n unlike runs."""

    grid: Grid
    machine: Machine
    body: Body
    chain: Chain
    cores: Cores
    engine: Engine

    @property
    def is_moe(self) -> NDArray[np.bool_]:
        """Whether there are experts, (1,) or (n,)."""
        return self.body.moe_layers > 0.0

    def merged(self) -> Case:
        """The same case with equal operators as one row: what evaluation wants. Columns (k, 1)."""
        return replace(self, chain=self.chain.merged())

    def rows(self, chosen: slice) -> Case:
        """Some of the layouts of one model."""
        grid = {f.name: getattr(self.grid, f.name)[chosen] for f in fields(self.grid)}
        return replace(self, grid=Grid(**grid))

    def fabric(self, coefficients: Coefficients) -> Fabric:
        """The links after efficiency."""
        values, machine = coefficients.values, self.machine
        network = coefficients.value("network.efficiency") * machine.network_bandwidth
        return Fabric(
            one_shot_bandwidth=machine.link_bandwidth * values[machine.one_shot],
            link_bandwidth=machine.link_bandwidth * values[machine.link_efficiency],
            link_latency_s=values[self.engine.latency_s],
            ring_s=coefficients.value("link.ring_s"),
            all_to_all_bandwidth=machine.link_bandwidth
            * coefficients.value("all_to_all.efficiency"),
            network_bandwidth=network,
            network_latency_s=machine.network_latency_s,
        )


def make_case(
    model: ModelSpec,
    group: NodeGroup,
    table: LayoutTable,
    coefficients: Coefficients,
    *,
    backend: str = "vllm",
    version: str = "",
) -> Case:
    """Columns of `table` for `model` served by `backend` on the devices of `group`."""
    return Case(
        grid=_grid(model, group, table),
        machine=_machine(group, coefficients),
        body=_body(model),
        chain=lower_chain(model, group.device, coefficients),
        cores=lower_cores(model, group.device, coefficients),
        engine=engine_positions(backend, version, group.device, coefficients),
    )


def stack(cases: Sequence[Case]) -> Case:
    """Cases side by side: every column gets n = the sum of their layouts; chains are padded."""
    sizes = [len(case.grid.tp) for case in cases]
    made = {}
    for section in fields(Case):
        parts = [getattr(case, section.name) for case in cases]
        columns = {
            column.name: _join([getattr(part, column.name) for part in parts], sizes)
            for column in fields(parts[0])
        }
        if "count" in columns:  # rows that pad are copies of the last: they count nothing
            columns["count"] = np.where(_padding(parts, sizes), 0.0, columns["count"])
        made[section.name] = type(parts[0])(**columns)
    return Case(**made)


def _padding(parts: Sequence[Chain | Cores], sizes: list[int]) -> NDArray[np.bool_]:
    depths = np.repeat([len(part.count) for part in parts], sizes)
    return np.arange(depths.max())[:, None] >= depths


def _join(columns: list[NDArray[np.generic]], sizes: list[int]) -> NDArray[np.generic]:
    if columns[0].ndim == 1:
        return np.concatenate(
            [np.broadcast_to(c, (size,)) for c, size in zip(columns, sizes, strict=True)]
        )
    depth = max(len(c) for c in columns)
    wide = []
    for column, size in zip(columns, sizes, strict=True):
        padded = np.concatenate([column, np.repeat(column[-1:], depth - len(column), axis=0)])
        wide.append(np.broadcast_to(padded, (depth, size)))
    return np.concatenate(wide, axis=1)


def _grid(model: ModelSpec, group: NodeGroup, table: LayoutTable) -> Grid:
    tp, dp, pp = (np.asarray(column, dtype=np.float64) for column in (table.tp, table.dp, table.pp))
    one = np.ones_like(tp)
    moe_tp, moe_ep = tp * dp, one
    if model.experts:
        moe_tp = np.asarray(table.moe_tp, dtype=np.float64)
        moe_ep = np.asarray(table.moe_ep, dtype=np.float64)
    return Grid(
        tp=tp,
        dp=dp,
        pp=pp,
        moe_tp=moe_tp,
        moe_ep=moe_ep,
        devices=tp * dp * pp,
        domain=one * group.domain_devices,
    )


def _machine(group: NodeGroup, coefficients: Coefficients) -> Machine:
    device, family = group.device, family_of(group.device).value
    return Machine(
        memory_bandwidth=np.array([device.memory_bandwidth]),
        link_bandwidth=np.array([device.link_bandwidth]),
        network_bandwidth=np.array([device.network_bandwidth]),
        network_latency_s=np.array([device.network_latency_s]),
        host_bandwidth=np.array([device.host_bandwidth]),
        peak=np.array([device.flops[compute_format(NumberFormat.BF16, device)]]),
        cpu=np.array([device.kind == "cpu"]),
        link_efficiency=np.array([coefficients.position(f"link.{family}.efficiency")]),
        one_shot=np.array([coefficients.position(f"link.{family}.one_shot")]),
        small_s=np.array([coefficients.position(f"kernel.{family}.small_s")]),
        fp8_share=np.array(
            [coefficients.position(f"attention.{family}.fp8_share", "attention.fp8_share")]
        ),
    )


def _body(model: ModelSpec) -> Body:
    kinds = dict.fromkeys((GROUPED, LATENT, LINEAR), 0)
    moe = 0
    for kind, count in model.layers:
        kinds[{"gqa": GROUPED, "mla": LATENT, "linear": LINEAR}[kind.attention.kind.value]] += count
        moe += count * kind.is_moe
    stored = [
        op.format
        for kind, _ in model.layers
        for op in kind.operators
        if op.group.value == "experts"
    ]
    return Body(
        hidden=np.array([float(model.hidden)]),
        vocab=np.array([float(model.vocab)]),
        experts=np.array([float(max(model.experts, 1))]),
        chosen=np.array([float(max(model.experts_per_token, 1))]),
        layers=np.array([float(model.num_layers)]),
        moe_layers=np.array([float(moe)]),
        grouped_layers=np.array([float(kinds[GROUPED])]),
        latent_layers=np.array([float(kinds[LATENT])]),
        linear_layers=np.array([float(kinds[LINEAR])]),
        indexed_layers=np.array(
            [float(sum(count for kind, count in model.layers if kind.attention.index_heads))]
        ),
        operators=np.array(
            [float(sum(count * len(kind.operators) for kind, count in model.layers))]
        ),
        tp_norms=np.array(
            [float(sum(count * kind.attention.tp_norms for kind, count in model.layers))]
        ),
        kv_bytes=np.array([model.kv_format.bytes]),
        eight_bits=np.array([any(fmt.bytes <= 1.0 for fmt in stored)]),
    )
