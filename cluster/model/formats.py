"""Number formats and their sizes.

The bits of a weight include its scales where the format has per-block ones:
mxfp4 stores one 8-bit scale per 32 values (4.25 bits), nvfp4 one fp8 scale per 16 (4.5 bits),
GPTQ/AWQ int4 one fp16 scale and zero per 128 (4.16 bits).
Sources: OCP Microscaling Formats 1.0; NVIDIA NVFP4 description; AutoGPTQ and AWQ group size 128.
"""

from __future__ import annotations

from enum import StrEnum


class NumberFormat(StrEnum):
    """How a tensor's elements are stored."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP8_BLOCK = "fp8_block"
    INT8 = "int8"
    INT4 = "int4"
    MXFP4 = "mxfp4"
    NVFP4 = "nvfp4"

    @property
    def bytes(self) -> float:
        """Bytes per element, block scales included."""
        return _BITS[self] / 8.0


_BITS: dict[NumberFormat, float] = {
    NumberFormat.FP32: 32.0,
    NumberFormat.BF16: 16.0,
    NumberFormat.FP16: 16.0,
    NumberFormat.FP8: 8.0,
    NumberFormat.FP8_BLOCK: 8.0,
    NumberFormat.INT8: 8.0,
    NumberFormat.INT4: 4.16,
    NumberFormat.MXFP4: 4.25,
    NumberFormat.NVFP4: 4.5,
}
