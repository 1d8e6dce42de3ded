"""How long do a step's matrix products take on one device? A roofline with measured curves.

    t = floor + serial K + ((flops / (peak mfu M/(M+half)))^4 + (bytes / (bandwidth mbu))^4)^(1/4)

M tokens, K the product's inner dimension on this device (Williams, Waterman, Patterson 2009; form
and curves fitted to operator tables, see docs/cost-model.md). The fourth power rounds the knee.

Routed experts: T tokens of all data-parallel ranks with k of E choices each touch
E' (1 - (1 - k/E')^T) experts, E' = hot E, because routing is skewed; a rank reads those it holds.
Many tokens load the fullest of ep ranks more than the mean: 1 + skew log2(ep) T/(T + 768). A thin
slice of an expert (intermediate I per device) wastes part of a tile: times (I + slice)/I.

Shapes: tokens (n,), result (k, n) seconds per step, all layers that hold the operator.
Invariants: t >= flops / peak and t >= bytes / bandwidth; t is monotone in tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.case import Case
from cluster.costmodel.chain import EXPERT, EXPERTS, HEAD, TENSOR
from cluster.costmodel.coefficients import Coefficients

Floats = NDArray[np.float64]
_MANY_TOKENS = 768.0  # routing skew costs where compute limits (tables: between 256 and 2048)


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """What a step's products see, (n,): tokens of a rank, logits rows, tokens routed by all."""

    here: Floats
    sampled: Floats
    routed: Floats


def cuts(case: Case) -> Floats:
    """Ranks that divide each operator's matrices in the Megatron scheme, (k, n)."""
    cut = case.chain.cut
    return np.where(
        cut == TENSOR, case.grid.tp, np.where(cut == EXPERT, case.grid.moe_tp, 1.0)
    ).astype(np.float64)


def operators_s(case: Case, tokens: Tokens, coefficients: Coefficients) -> Floats:
    """Seconds of every operator, (k, n), experts included."""
    chain, engine, values = case.chain, case.engine, coefficients.values
    is_expert = chain.part == EXPERTS
    seconds = np.empty((len(chain.count), len(tokens.here)))
    some = np.flatnonzero(~is_expert.all(axis=1))
    part = replace(case, chain=chain.take(some))
    seconds[some] = dense_s(part, tokens, coefficients, cut=cuts(part), by_row=part.chain.by_row)
    experts = np.flatnonzero(is_expert.any(axis=1))
    if len(experts):
        part = replace(case, chain=chain.take(experts))
        routed = experts_s(part, tokens, coefficients, cut=cuts(part)) * values[engine.experts]
        seconds[experts] = np.where(is_expert[experts], routed, seconds[experts])
    busy = np.where(chain.part == HEAD, tokens.sampled, tokens.here) > 0.0
    return np.where(busy, seconds * chain.count, 0.0)


def dense_s(
    case: Case,
    tokens: Tokens,
    coefficients: Coefficients,
    *,
    cut: Floats,
    by_row: NDArray[np.bool_],
) -> Floats:
    """Seconds of one layer's operators whose matrices `cut` ranks share, (k, n).

    `by_row`: cut along the input, so that each rank multiplies a slice of K.
    """
    chain, values = case.chain, coefficients.values
    rows = np.where(by_row, chain.rows / cut, chain.rows)
    cols = np.where(by_row, chain.cols, chain.cols / cut)
    m = np.where(chain.part == HEAD, tokens.sampled, tokens.here)
    weights = rows * cols * chain.matrices
    bytes_ = weights * chain.bytes_ + m * (rows + cols) * chain.matrices * case.machine.width
    core = _roofline(case, coefficients, flops=2.0 * weights * m, bytes_=bytes_, m=m)
    core = core * values[case.engine.gemm]
    return np.asarray(core + _floor(case, coefficients) + values[chain.serial_s] * rows)


def experts_s(case: Case, tokens: Tokens, coefficients: Coefficients, *, cut: Floats) -> Floats:
    """Seconds of one layer's routed experts, (k, n); rows of other operators mean nothing."""
    chain, grid, body = case.chain, case.grid, case.body
    visits, read = expert_load(case, tokens.routed, coefficients)
    weights = chain.rows * chain.cols * chain.matrices / cut
    inner = np.where(chain.by_row, chain.rows, chain.cols / 2.0) / grid.moe_tp
    waste = 1.0 + coefficients.value("experts.slice") / inner
    width = case.machine.width
    activations = visits * (chain.rows + chain.cols) / grid.moe_tp * chain.matrices * width
    core = _roofline(
        case,
        coefficients,
        flops=2.0 * weights * visits * waste,
        bytes_=read * weights * chain.bytes_ * waste + activations,
        m=visits / np.maximum(read, 1e-9),
    )
    return np.where(body.moe_layers > 0.0, core + 0.5 * _floor(case, coefficients), 0.0)


def expert_load(case: Case, routed: Floats, coefficients: Coefficients) -> tuple[Floats, Floats]:
    """(token, expert) pairs of the fullest rank, and experts it reads; (n,) each."""
    body, grid = case.body, case.grid
    experts, chosen = body.experts, body.chosen
    hot = np.maximum(experts * coefficients.value("experts.hot"), np.minimum(chosen * 1.5, experts))
    touched = hot * (1.0 - (1.0 - np.minimum(chosen / hot, 1.0)) ** routed)
    touched = np.minimum(touched, routed * chosen)
    # With few tokens per rank the visits are lumpy: at least one expert's worth on some rank.
    visits = np.maximum(
        routed * chosen / grid.moe_ep * skew(case, routed, coefficients),
        np.minimum(routed * chosen, 1.0),
    )
    read = np.clip(touched / grid.moe_ep, np.minimum(1.0, touched), experts / grid.moe_ep)
    return visits, read


def skew(case: Case, routed: Floats, coefficients: Coefficients) -> Floats:
    """Load of the fullest expert rank over the mean, (n,)."""
    amount = coefficients.value("experts.skew") * routed / (routed + _MANY_TOKENS)
    return np.asarray(1.0 + amount * np.log2(case.grid.moe_ep))


def rounded_knee(*seconds: Floats) -> Floats:
    """The fourth root of the sum of fourth powers: the largest, with rounded corners."""
    whole: Floats | float = 0.0
    for part in seconds:
        square = part * part  # numpy's own fourth power is many times slower
        whole = whole + square * square
    return np.asarray(np.sqrt(np.sqrt(whole)))


def _floor(case: Case, coefficients: Coefficients) -> Floats:
    return np.asarray(coefficients.values[case.chain.floor_s])


def _roofline(
    case: Case, coefficients: Coefficients, *, flops: Floats, bytes_: Floats, m: Floats
) -> Floats:
    chain, values = case.chain, coefficients.values
    peak = chain.peak * values[chain.mfu]
    compute = flops / peak * (1.0 + values[chain.half_tokens] / np.maximum(m, 1e-9))
    memory = bytes_ / (case.machine.memory_bandwidth * values[chain.mbu])
    return rounded_knee(compute, memory)
