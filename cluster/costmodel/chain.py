"""A model lowered to columns: one row per operator and per attention core, beside their curves.

A layer is a chain of fused operators; layers of one kind are counted, not repeated. Columns are of
shape (k, 1) for one model on one device, or (k, n) where n runs of different models are evaluated
at once (`case.stack`): every formula of the cost model works on both. Curves are positions into
`Coefficients.values`, not values, so that a fit moves the values and lowers nothing again.

Invariant: an operator with count 0 costs nothing (rows that pad a stack).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.families import compute_format, family_of
from cluster.model.formats import NumberFormat
from cluster.model.hardware import Device
from cluster.model.model_spec import (
    AttentionKind,
    AttentionSpec,
    Group,
    LayerKind,
    ModelSpec,
    Operator,
)
from cluster.model.operators import ROW_SECOND

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WHOLE, TENSOR, EXPERT = 0, 1, 2
"""How an operator is cut by default: not at all, by tp, by moe_tp and moe_ep."""

PROJECTIONS, FFN, EXPERTS, HEAD = 0, 1, 2, 3
"""Which part of a step an operator belongs to."""

GROUPED, LATENT, LINEAR = 0, 1, 2
"""Kinds of attention cores."""

_CUT = {Group.EXPERTS: EXPERT, Group.REPLICATED: WHOLE}
_PART = {Group.ATTENTION: PROJECTIONS, Group.EXPERTS: EXPERTS, Group.VOCABULARY: HEAD}
_KIND = {
    AttentionKind.GQA: (GROUPED, "attention"),
    AttentionKind.MLA: (LATENT, "latent"),
    AttentionKind.LINEAR: (LINEAR, "linear"),
}
_UNLIMITED = 1e12


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Matrix products. `count` layers hold an operator of `matrices` of (rows, cols).

    For routed experts `matrices` is per expert. `bytes_` per weight; `peak` operations/s of the
    device in the format it multiplies in. The five curve columns are positions.
    """

    count: Floats
    rows: Floats
    cols: Floats
    matrices: Floats
    bytes_: Floats
    peak: Floats
    cut: Ints
    part: Ints
    by_row: NDArray[np.bool_]  # cut along its input in the Megatron scheme
    mbu: Ints
    mfu: Ints
    half_tokens: Ints
    floor_s: Ints
    serial_s: Ints

    def take(self, rows: Ints) -> Chain:
        """Only the operators at `rows`."""
        return Chain(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def merged(self) -> Chain:
        """Equal operators as one, their counts added: layer kinds share most. Columns (k, 1)."""
        names = [field.name for field in fields(self) if field.name != "count"]
        rows = list(zip(*(getattr(self, name)[:, 0].tolist() for name in names), strict=True))
        first = {row: rows.index(row) for row in rows}
        kept = np.array(sorted(set(first.values())))
        count = np.zeros_like(self.count)
        for index, row in enumerate(rows):
            count[first[row]] += self.count[index]
        return replace(self, count=count).take(kept)


@dataclass(frozen=True, kw_only=True)
class Cores:
    """Attention cores. The fields of `AttentionSpec`; `limit` is 1e12 where there is none."""

    count: Floats
    kind: Ints
    heads: Floats
    kv_heads: Floats
    qk_dim: Floats
    v_dim: Floats
    decode_width: Floats
    kv_elements: Floats
    state_elements: Floats
    limit: Floats
    index_heads: Floats
    index_dim: Floats
    decode_mbu: Ints
    decode_mfu: Ints
    prefill_mfu: Ints
    half_context: Ints
    floor_s: Ints
    item_s: Ints


def lower_operators(model: ModelSpec, device: Device, coefficients: Coefficients) -> Chain:
    """All operators of all layer kinds and the head, in order; columns (k, 1)."""
    rows = [
        _operator_row(op, count, model=model, device=device, coefficients=coefficients)
        for kind, count in model.layers
        for op in kind.operators
        if op.rows and op.cols
    ]
    rows.append(
        _operator_row(head_of(model), 1, model=model, device=device, coefficients=coefficients)
    )
    return Chain(**_columns(rows))


def lower_cores(model: ModelSpec, device: Device, coefficients: Coefficients) -> Cores:
    """The attention core of each layer kind; columns (a, 1)."""
    rows = [
        _core_row(kind, count, device=device, coefficients=coefficients)
        for kind, count in model.layers
    ]
    return Cores(**_columns(rows))


def head_of(model: ModelSpec) -> Operator:
    """The output head; where it is tied, a product with the embedding."""
    if model.head is not None:
        return model.head
    return Operator(
        name="head",
        group=Group.VOCABULARY,
        rows=model.hidden,
        cols=model.vocab,
        format=model.embedding.format,
    )


def gemm_positions(
    kind: str, stored: NumberFormat, device: Device, coefficients: Coefficients
) -> dict[str, int]:
    """Positions of the curve of `kind` (gemm or experts), of the nearest format that has one."""
    family = family_of(device).value
    formats = (stored, compute_format(stored, device), NumberFormat.BF16, NumberFormat.FP32)
    found: dict[str, int] = {}
    for name in ("mbu", "mfu", "half_tokens", "floor_s", "serial_s"):
        found[name] = coefficients.position(
            *(f"{kind}.{family}.{_spelt(fmt)}.{name}" for fmt in formats),
            *(f"gemm.{family}.{_spelt(fmt)}.{name}" for fmt in formats),
            f"{kind}.{name}",
        )
    return found


def _spelt(fmt: NumberFormat) -> str:
    return NumberFormat.BF16.value if fmt is NumberFormat.FP16 else fmt.value


def _operator_row(
    op: Operator, count: int, *, model: ModelSpec, device: Device, coefficients: Coefficients
) -> dict[str, float]:
    expert = op.group is Group.EXPERTS
    return {
        "count": float(count),
        "rows": float(op.rows),
        "cols": float(op.cols),
        "matrices": op.copies / max(model.experts, 1)
        if expert
        else min(op.active, float(op.copies)),
        "bytes_": op.format.bytes,
        "peak": device.flops[compute_format(op.format, device)],
        "cut": _CUT.get(op.group, TENSOR),
        "part": _PART.get(op.group, FFN),
        "by_row": op.name in ROW_SECOND,
        **gemm_positions("experts" if expert else "gemm", op.format, device, coefficients),
    }


def _core_row(
    kind: LayerKind, count: int, *, device: Device, coefficients: Coefficients
) -> dict[str, float]:
    spec = kind.attention
    code, prefix = _KIND[spec.kind]
    family = family_of(device).value
    curve = {
        name: coefficients.position(f"{prefix}.{family}.{name}", f"attention.{family}.{name}")
        for name in (
            "decode_mbu",
            "decode_mfu",
            "prefill_mfu",
            "half_context",
            "floor_s",
            "item_s",
        )
    }
    return {
        "count": float(count),
        "kind": code,
        "heads": float(spec.heads),
        "kv_heads": float(max(spec.kv_heads, 1)),
        "qk_dim": float(spec.qk_dim),
        "v_dim": float(spec.v_dim),
        "decode_width": _decode_width(spec),
        "kv_elements": float(spec.kv_elements),
        "state_elements": float(spec.state_elements),
        "limit": float(
            min((x for x in (spec.context_limit, spec.window) if x is not None), default=_UNLIMITED)
        ),
        "index_heads": float(spec.index_heads),
        "index_dim": float(spec.index_dim),
        **curve,
    }


def _decode_width(spec: AttentionSpec) -> float:
    """Multiply-adds of one query head with one cached token in decode."""
    if spec.kind is AttentionKind.LINEAR:
        return 0.0
    return float((spec.decode_qk_dim or spec.qk_dim) + (spec.decode_v_dim or spec.v_dim))


_INTS = frozenset(
    {"cut", "part", "kind", "mbu", "mfu", "half_tokens", "floor_s", "serial_s"}
    | {"decode_mbu", "decode_mfu", "prefill_mfu", "half_context", "item_s"}
)


def _columns(rows: Iterable[dict[str, float]]) -> dict[str, NDArray[Any]]:
    listed = list(rows)
    made: dict[str, NDArray[Any]] = {}
    for name in listed[0]:
        dtype: type = np.int64 if name in _INTS else bool if name == "by_row" else np.float64
        made[name] = np.asarray([row[name] for row in listed], dtype=dtype)[:, None]
    return made
