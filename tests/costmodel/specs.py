"""Small models and devices of our own, so that these tests need no catalogue."""

from __future__ import annotations

from dataclasses import replace

from cluster.model.formats import NumberFormat
from cluster.model.hardware import Device, NodeGroup
from cluster.model.model_spec import (
    AttentionKind,
    AttentionSpec,
    Group,
    LayerKind,
    ModelSpec,
    Operator,
)

GIB = 1024.0**3


def device(**changes: object) -> Device:
    base = Device(
        name="H100-SXM",
        memory_bytes=80 * GIB,
        memory_bandwidth=3.35e12,
        flops={NumberFormat.BF16: 989e12, NumberFormat.FP8: 1978e12},
        link_bandwidth=450e9,
        link_latency_s=3e-6,
        domain=8,
        network_bandwidth=50e9,
        network_latency_s=15e-6,
        host_bandwidth=64e9,
        power_w=700.0,
        launch_overhead_s=2e-6,
        reserved_bytes=2 * GIB,
        price_per_hour=3.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def group(*, nodes: int = 1, devices_per_node: int = 8, **changes: object) -> NodeGroup:
    return NodeGroup(nodes=nodes, devices_per_node=devices_per_node, device=device(**changes))


def attention(*, kind: AttentionKind = AttentionKind.GQA, **changes: object) -> AttentionSpec:
    base = AttentionSpec(
        kind=kind, heads=32, kv_heads=8, qk_dim=128, v_dim=128, kv_elements=2 * 8 * 128
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def _projections(hidden: int) -> tuple[Operator, ...]:
    return (
        Operator(name="qkv", group=Group.ATTENTION, rows=hidden, cols=6144),
        Operator(name="out", group=Group.ATTENTION, rows=4096, cols=hidden),
        Operator(name="norms", group=Group.REPLICATED, rows=0, cols=0, extra_params=2 * hidden),
    )


def dense(*, layers: int = 32, hidden: int = 4096) -> ModelSpec:
    kind = LayerKind(
        name="dense",
        operators=(
            *_projections(hidden),
            Operator(name="gate_up", group=Group.DENSE, rows=hidden, cols=28672),
            Operator(name="down", group=Group.DENSE, rows=14336, cols=hidden),
        ),
        attention=attention(),
    )
    return _model("toy-dense", ((kind, layers),), hidden=hidden)


def moe(*, layers: int = 32, hidden: int = 4096, experts: int = 64, chosen: int = 4) -> ModelSpec:
    kind = LayerKind(
        name="moe",
        operators=(
            *_projections(hidden),
            Operator(name="router", group=Group.REPLICATED, rows=hidden, cols=experts),
            Operator(
                name="experts_in",
                group=Group.EXPERTS,
                rows=hidden,
                cols=4096,
                copies=experts,
                active=float(chosen),
            ),
            Operator(
                name="experts_out",
                group=Group.EXPERTS,
                rows=2048,
                cols=hidden,
                copies=experts,
                active=float(chosen),
            ),
        ),
        attention=attention(),
    )
    spec = _model("toy-moe", ((kind, layers),), hidden=hidden)
    return replace(spec, experts=experts, experts_per_token=chosen)


def _model(name: str, layers: tuple[tuple[LayerKind, int], ...], *, hidden: int) -> ModelSpec:
    vocab = 128256
    return ModelSpec(
        name=name,
        architecture="Toy",
        hidden=hidden,
        vocab=vocab,
        max_context=32768,
        layers=layers,
        embedding=Operator(name="embedding", group=Group.VOCABULARY, rows=vocab, cols=hidden),
        head=Operator(name="head", group=Group.VOCABULARY, rows=hidden, cols=vocab),
        heads=32,
        kv_heads=8,
    )


def single(*, rows: int, cols: int, stored: NumberFormat) -> ModelSpec:
    """One layer of one matrix product, nothing else that multiplies."""
    kind = LayerKind(
        name="one",
        operators=(Operator(name="up", group=Group.DENSE, rows=rows, cols=cols, format=stored),),
        attention=attention(),
    )
    return _model("toy-single", ((kind, 1),), hidden=rows)
