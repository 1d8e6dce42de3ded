"""How long does a matrix product take on one device? The roofline with measured efficiencies.

t = max(flops / (peak * mfu * M / (M + half)), bytes / (bandwidth * mbu)), M tokens (Williams,
Waterman, Patterson 2009). Routed experts: T tokens with k choices of E experts touch
E * (1 - (1 - k/E)^T) of them, so a small batch reads few experts, a large one all.

Shapes: tokens (n,), result (n,) seconds of one operator of one layer.
Invariants: t >= flops / peak and t >= bytes / bandwidth; t is monotone in tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.coefficients import compute_format, gemm_curve
from cluster.costmodel.grid import Grid
from cluster.model.formats import NumberFormat
from cluster.model.model_spec import Group, ModelSpec, Operator

Floats = NDArray[np.float64]


def gemm_s(
    *, flops: Floats, bytes_: Floats, tokens: Floats, stored: NumberFormat, grid: Grid
) -> Floats:
    """Seconds of a matrix product of `flops` operations reading and writing `bytes_`.

    `tokens` is the M of the product (per expert for grouped products), shape (n,).
    """
    device = grid.device
    curve = gemm_curve(stored, device, grid.coefficients)
    peak = device.flops[compute_format(stored, device)]
    waste = 1.0 + curve.half_tokens / np.maximum(tokens, 1e-9)
    compute = flops / (peak * curve.mfu) * waste
    memory = bytes_ / (device.memory_bandwidth * curve.mbu)
    return np.where(tokens > 0.0, np.maximum(compute, memory), 0.0)


def shards(operator: Operator, grid: Grid) -> Floats:
    """Ranks that divide the operator's matrices among them, shape (n,)."""
    if operator.group is Group.EXPERTS:
        return grid.moe_tp * grid.moe_ep
    if operator.group is Group.REPLICATED:
        return np.ones_like(grid.tp)
    return grid.tp


def operator_s(
    operator: Operator, tokens: Floats, *, routed: Floats, model: ModelSpec, grid: Grid
) -> Floats:
    """Seconds of one operator for `tokens` tokens of one data-parallel rank, shape (n,).

    `routed` is what all data-parallel ranks together send to the experts, shape (n,).
    """
    if operator.rows == 0 or operator.cols == 0:
        return np.zeros_like(tokens)
    if operator.group is Group.EXPERTS:
        return _experts_s(operator, routed, model=model, grid=grid)
    cut = shards(operator, grid)
    active = min(operator.active, float(operator.copies))
    weights = active * operator.rows * operator.cols / cut
    activations = tokens * (operator.rows + operator.cols / cut) * active
    bytes_ = weights * operator.format.bytes + activations * activation_bytes(grid)
    return gemm_s(
        flops=2.0 * weights * tokens,
        bytes_=bytes_,
        tokens=tokens,
        stored=operator.format,
        grid=grid,
    )


def activation_bytes(grid: Grid) -> float:
    """Bytes of an activation element: 16 bits on an accelerator, 32 on a CPU."""
    return 4.0 if grid.device.kind == "cpu" else 2.0


def skew(grid: Grid) -> Floats:
    """Load of the fullest expert rank over the mean, shape (n,)."""
    return 1.0 + grid.coefficients.expert_skew * np.log2(grid.moe_ep)


def _experts_s(operator: Operator, routed: Floats, *, model: ModelSpec, grid: Grid) -> Floats:
    experts = float(max(model.experts, 1))
    chosen = float(model.experts_per_token)
    matrices = operator.copies / experts  # matrices of this operator per expert
    touched = experts * (1.0 - (1.0 - min(chosen / experts, 1.0)) ** routed)
    per_expert = routed * chosen / np.maximum(touched, 1e-9)
    matrix = float(operator.rows) * operator.cols * matrices
    visits = routed * chosen / grid.moe_ep * skew(grid)  # (token, expert) pairs of a rank
    # A rank never reads more experts than it holds, and at least the one it works on.
    read = np.minimum(touched / grid.moe_ep * skew(grid), experts / grid.moe_ep)
    read = np.maximum(read, np.minimum(1.0, touched))
    activations = visits * (operator.rows + operator.cols) / grid.moe_tp * matrices
    bytes_ = read * matrix / grid.moe_tp * operator.format.bytes + activations * activation_bytes(
        grid
    )
    # With few tokens per rank the visits are lumpy: at least one expert's worth on some rank.
    visits = np.maximum(visits, np.minimum(routed * chosen, 1.0))
    return gemm_s(
        flops=2.0 * matrix * visits / grid.moe_tp,
        bytes_=bytes_,
        tokens=per_expert,
        stored=operator.format,
        grid=grid,
    )
