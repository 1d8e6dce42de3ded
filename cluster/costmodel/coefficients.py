"""What fraction of a device's peak do real kernels reach? A few published constants, by family.

The curve of a matrix product with M tokens is eff(M) = mfu * M / (M + half_tokens): the part of
peak reached, rising with the number of tokens. Where weights dominate, `mbu` of the memory
bandwidth is reached. Sources: operator tables of ai-dynamo/aiconfigurator 0.12 (Apache-2.0;
median over shapes 4096..32768) for GEMM, attention and NCCL; DeepEP's published latencies for
all-to-all; datasheets otherwise.
Invariants: every fraction is in (0, 1], so that no estimate beats the roofline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from cluster.model.formats import NumberFormat
from cluster.model.hardware import Device

PROVENANCE = (
    "roofline and alpha-beta; published operator efficiencies (aiconfigurator 0.12, DeepEP), "
    "a few constants set by hand against measured serving runs; not calibrated on this cluster"
)


class Family(StrEnum):
    """Device generations that share efficiency curves."""

    AMPERE = "ampere"
    ADA = "ada"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    CDNA3 = "cdna3"
    CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class GemmCurve:
    """Matrix products in one format: fractions of bandwidth and of peak, and the knee in tokens."""

    mbu: float
    mfu: float
    half_tokens: float


@dataclass(frozen=True, kw_only=True)
class AttentionCurve:
    """Attention cores: prefill eff(L) = mfu * L / (L + half_context); decode a share of bandwidth.

    `decode_floor_s` is the least time of one decode kernel, whatever it reads.
    """

    prefill_mfu: float
    half_context: float
    decode_mbu: float
    decode_floor_s: float


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """All constants of the cost model that are not on a datasheet."""

    gemm: Mapping[tuple[Family, NumberFormat], GemmCurve]
    attention: Mapping[Family, AttentionCurve]
    link_efficiency: float  # share of scale-up bandwidth collectives reach (H100 445 of 2*7/8*450)
    network_efficiency: float  # share of NIC bandwidth (H100 send/recv: 35.9 of 50 GB/s)
    all_to_all_efficiency: float  # share of scale-up bandwidth of DeepEP dispatch and combine
    expert_skew: float  # load of the fullest expert rank: 1 + skew * log2(moe_ep)
    captured_alpha: (
        float  # latency of an engine's own collectives over NCCL's (H100: 2.8 of 6.9 us)
    )
    captured_launch: Mapping[str, float]  # share of a launch left under a CUDA graph, by kind
    kernels_per_layer: float  # norms, rotary, activation, cache write, beside the operators
    host_step_s: Mapping[str, float]  # scheduling and sampling of one engine step, by device kind
    host_sequence_s: Mapping[str, float]  # sampling and bookkeeping of one sequence of a step
    host_request_s: Mapping[str, float]  # tokenising, admission, first response, by device kind
    convoy: float  # share of closed-loop requests whose prompts arrive together
    provenance: str = PROVENANCE


def family_of(device: Device) -> Family:
    """The family whose curves describe `device`: by name, else by the formats it computes in."""
    name = device.name.upper()
    for prefix, family in _PREFIXES:
        if name.startswith(prefix):
            return family
    if device.kind == "cpu":
        return Family.CPU
    if NumberFormat.NVFP4 in device.flops:
        return Family.BLACKWELL
    if NumberFormat.FP8 in device.flops:
        return Family.HOPPER
    return Family.AMPERE


def compute_format(stored: NumberFormat, device: Device) -> NumberFormat:
    """In which format `device` multiplies weights stored as `stored`.

    Block-scaled fp8 runs on the fp8 units and mxfp4 on the fp4 ones; a format the device has no
    units for is widened to 16 bits (weight-only quantisation), or to fp32 as the last resort.
    """
    for candidate in (*_UNITS[stored], NumberFormat.BF16, NumberFormat.FP16, NumberFormat.FP32):
        if candidate in device.flops:
            return candidate
    return max(device.flops, key=lambda fmt: fmt.bytes)


def gemm_curve(stored: NumberFormat, device: Device, coefficients: Coefficients) -> GemmCurve:
    """The curve for weights stored as `stored`, nearest known format of the family otherwise."""
    family = family_of(device)
    computed = compute_format(stored, device)
    for key in ((family, stored), (family, computed), (family, NumberFormat.BF16)):
        if key in coefficients.gemm:
            return coefficients.gemm[key]
    return GemmCurve(mbu=0.6, mfu=0.6, half_tokens=64.0)


_PREFIXES: tuple[tuple[str, Family], ...] = (
    ("A100", Family.AMPERE),
    ("A6000", Family.AMPERE),
    ("A40", Family.AMPERE),
    ("L40", Family.ADA),
    ("L4", Family.ADA),
    ("H100", Family.HOPPER),
    ("H200", Family.HOPPER),
    ("H20", Family.HOPPER),
    ("B200", Family.BLACKWELL),
    ("B300", Family.BLACKWELL),
    ("GB200", Family.BLACKWELL),
    ("GB300", Family.BLACKWELL),
    ("RTX", Family.BLACKWELL),
    ("MI3", Family.CDNA3),
    ("CPU", Family.CPU),
)

_UNITS: dict[NumberFormat, tuple[NumberFormat, ...]] = {
    NumberFormat.FP32: (NumberFormat.FP32,),
    NumberFormat.BF16: (NumberFormat.BF16,),
    NumberFormat.FP16: (NumberFormat.FP16,),
    NumberFormat.FP8: (NumberFormat.FP8,),
    NumberFormat.FP8_BLOCK: (NumberFormat.FP8_BLOCK, NumberFormat.FP8),
    NumberFormat.INT8: (NumberFormat.INT8,),
    NumberFormat.INT4: (),
    NumberFormat.MXFP4: (NumberFormat.MXFP4, NumberFormat.NVFP4),
    NumberFormat.NVFP4: (NumberFormat.NVFP4,),
}


def _curves() -> dict[tuple[Family, NumberFormat], GemmCurve]:
    rows: tuple[tuple[Family, NumberFormat, float, float, float], ...] = (
        (Family.AMPERE, NumberFormat.BF16, 0.70, 0.91, 60),
        (Family.AMPERE, NumberFormat.INT8, 0.55, 0.60, 100),
        (Family.ADA, NumberFormat.BF16, 0.80, 0.61, 60),
        (Family.ADA, NumberFormat.FP8, 0.79, 0.51, 100),
        (Family.HOPPER, NumberFormat.BF16, 0.75, 0.80, 50),
        (Family.HOPPER, NumberFormat.FP8, 0.55, 0.62, 110),
        (Family.HOPPER, NumberFormat.FP8_BLOCK, 0.62, 0.56, 90),
        (Family.HOPPER, NumberFormat.INT4, 0.45, 0.50, 60),
        (Family.BLACKWELL, NumberFormat.BF16, 0.63, 0.67, 70),
        (Family.BLACKWELL, NumberFormat.INT4, 0.40, 0.40, 100),
        # The kernel tables say 0.30 (fp8) and 0.18 (nvfp4) of bandwidth at one token, activation
        # quantisation as a kernel of its own included. Engines fuse it: measured serving runs
        # (InferenceX, see docs/cost-model.md) contradict the tables by half. Set once, by hand.
        (Family.BLACKWELL, NumberFormat.FP8, 0.60, 0.50, 120),
        (Family.BLACKWELL, NumberFormat.FP8_BLOCK, 0.60, 0.59, 120),
        (Family.BLACKWELL, NumberFormat.NVFP4, 0.60, 0.39, 180),
        (Family.CDNA3, NumberFormat.BF16, 0.65, 0.50, 100),
        # One core serving SmolLM2-135M on vLLM's CPU build, eager (bench/cpu_engine.py). Int8 has
        # a kernel of its own that quantises activations: it reads weights at a quarter of the rate.
        (Family.CPU, NumberFormat.FP32, 0.90, 0.95, 2),
        (Family.CPU, NumberFormat.INT8, 0.25, 0.85, 8),
    )
    return {
        (family, fmt): GemmCurve(mbu=mbu, mfu=mfu, half_tokens=half)
        for family, fmt, mbu, mfu, half in rows
    }


def _attention(mfu: float, half: float, *, mbu: float, floor_s: float) -> AttentionCurve:
    return AttentionCurve(
        prefill_mfu=mfu, half_context=half, decode_mbu=mbu, decode_floor_s=floor_s
    )


DEFAULT = Coefficients(
    gemm=_curves(),
    attention={
        Family.AMPERE: _attention(0.60, 600.0, mbu=0.70, floor_s=14e-6),
        Family.ADA: _attention(0.42, 650.0, mbu=0.78, floor_s=12e-6),
        Family.HOPPER: _attention(0.68, 1800.0, mbu=0.88, floor_s=10e-6),
        Family.BLACKWELL: _attention(0.60, 2600.0, mbu=0.88, floor_s=10e-6),
        Family.CDNA3: _attention(0.45, 2000.0, mbu=0.70, floor_s=14e-6),
        Family.CPU: _attention(0.60, 100.0, mbu=0.60, floor_s=20e-6),
    },
    link_efficiency=0.75,
    network_efficiency=0.72,
    all_to_all_efficiency=0.45,
    expert_skew=0.08,
    captured_alpha=0.45,
    captured_launch={"gpu": 0.4, "cpu": 1.0},
    kernels_per_layer=5.0,
    host_step_s={"gpu": 1.5e-3, "cpu": 11e-3},
    host_sequence_s={"gpu": 5e-6, "cpu": 0.5e-3},
    host_request_s={"gpu": 30e-3, "cpu": 30e-3},
    convoy=0.25,
)
