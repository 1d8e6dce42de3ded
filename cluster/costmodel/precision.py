"""In which formats does a device hold a model? A CPU widens 16-bit weights and cache to fp32.

The reason is the engine's: its CPU build is run with `dtype=float32`, where a step is exact and,
on processors without 16-bit units, fastest. Accelerators keep the checkpoint's formats.
Invariant: applying it twice equals applying it once.
"""

from __future__ import annotations

from dataclasses import replace

from cluster.model.formats import NumberFormat
from cluster.model.hardware import Device
from cluster.model.model_spec import LayerKind, ModelSpec, Operator

_SIXTEEN = frozenset({NumberFormat.BF16, NumberFormat.FP16})


def as_held(model: ModelSpec, device: Device) -> ModelSpec:
    """`model` with the number formats in which `device` holds it."""
    if device.kind != "cpu":
        return model
    layers = tuple((_widen_kind(kind), count) for kind, count in model.layers)
    head = None if model.head is None else _widen(model.head)
    return replace(
        model,
        layers=layers,
        embedding=_widen(model.embedding),
        head=head,
        kv_format=_wide(model.kv_format),
    )


def _widen_kind(kind: LayerKind) -> LayerKind:
    return replace(kind, operators=tuple(_widen(op) for op in kind.operators))


def _widen(operator: Operator) -> Operator:
    return replace(operator, format=_wide(operator.format))


def _wide(stored: NumberFormat) -> NumberFormat:
    return NumberFormat.FP32 if stored in _SIXTEEN else stored
