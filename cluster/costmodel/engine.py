"""What does the serving engine add to the kernels? Positions of its coefficients.

An engine is a backend (vllm, sglang, trtllm; on CPU cores vLLM's CPU build) in a version. Names:
`engine.<backend>.…` for host work, `engine.<backend>.<family>.…` for its kernels against those of
the tables, `build.<backend>.<version>.…` for one version against the backend (1 where unknown),
`service.<backend>.…` for how it admits and batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.families import family_of
from cluster.errors import UnknownNameError
from cluster.model.hardware import Device

Ints = NDArray[np.int64]

BACKENDS = ("vllm", "sglang", "trtllm")
APART = frozenset({"sglang"})
"""Engines that run prompts in steps of their own (SGLang without --enable-mixed-chunk)."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Positions, (1,) or (n,) each; `mixes`: prompts and decoding sequences share a step."""

    kernels: Ints
    gemm: Ints
    experts: Ints
    attention: Ints
    latency_s: Ints
    step_s: Ints
    sequence_s: Ints
    request_s: Ints
    prompt_token_s: Ints
    prefill_step_s: Ints
    prefill_kernel_s: Ints
    wait_steps: Ints
    burst_drawn: Ints
    burst_equal: Ints
    slots: Ints
    random: Ints
    build_time: Ints
    build_prefill: Ints
    build_request: Ints
    build_burst: Ints
    mixes: NDArray[np.bool_]


def engine_positions(
    backend: str, version: str, device: Device, coefficients: Coefficients
) -> Engine:
    """Coefficients of `backend` in `version` ("" = unknown) on `device`.

    Raises UnknownNameError for a backend that is none of BACKENDS.
    """
    if backend not in BACKENDS:
        raise UnknownNameError(kind="backend", name=backend, known=BACKENDS)
    name = "cpu" if device.kind == "cpu" else backend
    family = family_of(device).value

    def at(*names: str) -> Ints:
        return np.array([coefficients.position(*names)])

    def own(field: str) -> Ints:
        return at(f"engine.{name}.{family}.{field}", f"engine.{name}.{field}", f"engine.{field}")

    def service(field: str) -> Ints:
        return at(f"service.{name}.{field}", f"service.{field}")

    def build(field: str) -> Ints:
        return at(f"build.{name}.{version}.{field}", f"build.{field}")

    return Engine(
        kernels=own("kernels"),
        gemm=own("gemm"),
        experts=own("experts"),
        attention=own("attention"),
        latency_s=at(f"link.{name}.{family}.latency_s", f"link.{family}.latency_s"),
        step_s=own("step_s"),
        sequence_s=own("sequence_s"),
        request_s=own("request_s"),
        prompt_token_s=own("prompt_token_s"),
        prefill_step_s=own("prefill_step_s"),
        prefill_kernel_s=own("prefill_kernel_s"),
        wait_steps=own("wait_steps"),
        burst_drawn=service("drawn.burst"),
        burst_equal=service("equal.burst"),
        slots=service("slots"),
        random=service("random"),
        build_time=build("time"),
        build_prefill=build("prefill"),
        build_request=build("request"),
        build_burst=build("burst"),
        mixes=np.array([backend not in APART or name == "cpu"]),
    )
