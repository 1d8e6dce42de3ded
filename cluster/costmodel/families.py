"""Which devices share efficiency curves, and in which format do they multiply?

A family is a generation of devices; its curves are coefficients (`coefficients.py`), its peaks are
the devices' own (`cluster.model.device_table`).
"""

from __future__ import annotations

from enum import StrEnum

from cluster.model.formats import NumberFormat
from cluster.model.hardware import Device


class Family(StrEnum):
    """Device generations that share efficiency curves."""

    AMPERE = "ampere"
    ADA = "ada"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    CDNA3 = "cdna3"
    CPU = "cpu"


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
