"""What do users see when c requests are always in flight? Chunked prefill between decodes, settled.

Every request brings ISL prompt tokens and takes OSL - 1 decode steps, so b decoding sequences
bring lam = (b - 1) * ISL / (OSL - 1) prompt tokens of others per step. A mixed step carries up to
C - b of them (C the chunk). With share f = lam / p of mixed steps carrying p tokens:
    TPOT = (1 - f) t_decode + f t_mixed,
    TTFT = host + half a step + queue + own chunks,
and Little's law, c = X (TTFT + (OSL - 1) TPOT), closes the loop: it says how many of the c are
decoding, and how long the rest waits when prefill or memory is the limit.
With pp stages, min(pp, running) micro-batches share the pipeline, and one mixed micro-batch delays
all (the bubble); with experts spread over dp ranks every rank waits for a mixed one (stragglers).

Shapes: (n,). Invariants: parts sum to TPOT and TTFT; c / X >= TTFT + (OSL - 1) TPOT.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.grid import Grid
from cluster.costmodel.steps import Parts, StepLoad, step_parts, total
from cluster.model.model_spec import ModelSpec
from cluster.model.workload import Workload

Floats = NDArray[np.float64]
_ROUNDS = 5  # of the damped fixed point over the number of decoding sequences


@dataclass(frozen=True, kw_only=True)
class SteadyState:
    """The operating point. Rates and counts are per data-parallel rank, times in seconds."""

    tpot_parts: Parts
    ttft_parts: Parts
    decoding: Floats
    requests_per_s: Floats

    @property
    def tpot_s(self) -> Floats:
        """Time per output token, shape (n,)."""
        return total(self.tpot_parts)

    @property
    def ttft_s(self) -> Floats:
        """Time to first token, shape (n,)."""
        return total(self.ttft_parts)


@dataclass(frozen=True, kw_only=True)
class _Cycle:
    """One evaluation at a given number of decoding sequences."""

    decode: Parts
    mixed_s: Floats
    share: Floats  # of steps that are mixed, for this micro-batch
    felt: Floats  # of steps delayed by any micro-batch or rank
    slowest: Floats  # mixed steps felt through the pipeline alone
    per_step: Floats  # prompt tokens a mixed step carries
    room: Floats
    sustained: Floats  # decoding sequences the prefill capacity feeds, over those assumed
    waves: Floats


def steady_state(
    model: ModelSpec,
    grid: Grid,
    workload: Workload,
    *,
    chunk: Floats,
    offered: Floats,
    admitted: Floats,
) -> SteadyState:
    """The settled loop for `offered` requests in flight per rank, of which `admitted` may run."""
    steps = float(max(workload.osl - 1, 1))
    running = np.maximum(np.minimum(offered, admitted), 1.0)
    decoding = running
    for _ in range(_ROUNDS):
        cycle = _cycle(model, grid, workload, running=running, decoding=decoding, chunk=chunk)
        decode_s = steps * total(_tpot_parts(cycle, model, grid))
        ttft = total(_ttft_parts(cycle, grid, workload, running=running))
        # Little's law and the prefill capacity each bound how many can be decoding.
        target = np.minimum(running * decode_s / (ttft + decode_s), decoding * cycle.sustained)
        decoding = np.maximum(np.sqrt(decoding * target), 1.0)
    cycle = _cycle(model, grid, workload, running=running, decoding=decoding, chunk=chunk)
    tpot_parts = _tpot_parts(cycle, model, grid)
    ttft_parts = _ttft_parts(cycle, grid, workload, running=running)
    decode_s, ttft = steps * total(tpot_parts), total(ttft_parts)
    served = decoding * np.minimum(cycle.sustained, 1.0)
    rate = np.minimum(served / decode_s, running / (ttft + decode_s))
    ttft_parts["queue"] = ttft_parts["queue"] + np.maximum(offered / rate - decode_s - ttft, 0.0)
    return SteadyState(
        tpot_parts=tpot_parts, ttft_parts=ttft_parts, decoding=decoding, requests_per_s=rate
    )


def prefill_only(
    model: ModelSpec, grid: Grid, workload: Workload, *, chunk: Floats
) -> tuple[Floats, Parts]:
    """Prompt tokens/s of a rank that does nothing else, and the parts of one such step."""
    prompt = np.full_like(grid.tp, float(workload.isl))
    nothing = np.zeros_like(grid.tp)
    load = StepLoad(
        decode=nothing, context=prompt, prefill=chunk, prompt=prompt, routed=chunk * grid.dp
    )
    parts = step_parts(model, grid, load)
    stage = (total(parts) - parts["send_recv"]) / grid.pp * _uneven(model, grid)
    return chunk / np.maximum(stage, 1e-12), parts


def _cycle(
    model: ModelSpec,
    grid: Grid,
    workload: Workload,
    *,
    running: Floats,
    decoding: Floats,
    chunk: Floats,
) -> _Cycle:
    isl, steps = float(workload.isl), float(max(workload.osl - 1, 1))
    # Micro-batches in the pipeline: prompts fill it as well as decoding sequences do.
    waves = np.clip(np.floor(running), 1.0, grid.pp)
    batch = decoding / waves
    context = np.full_like(grid.tp, isl + workload.osl / 2.0)
    prompt = np.full_like(grid.tp, isl)
    others = batch * np.maximum(1.0 - 1.0 / np.maximum(decoding, 1.0), 0.0)
    room = np.maximum(chunk - others, 1.0)
    arriving = others * isl / steps
    per_step = np.minimum(room, np.maximum(isl, arriving))
    share = np.minimum(arriving / per_step, 1.0)
    ranks = np.where(float(model.experts) > 0, grid.dp, 1.0)
    any_rank = 1.0 - (1.0 - share) ** ranks
    mixing = np.where(any_rank > 0.0, ranks * share / np.maximum(any_rank, 1e-9), 1.0)
    decode = StepLoad(
        decode=batch,
        context=context,
        prefill=np.zeros_like(grid.tp),
        prompt=prompt,
        routed=batch * ranks,
    )
    mixed = StepLoad(
        decode=others,
        context=context,
        prefill=per_step,
        prompt=prompt,
        routed=others * ranks + per_step * mixing,
    )
    decode_parts = step_parts(model, grid, decode)
    slowest = 1.0 - (1.0 - share) ** waves
    return _Cycle(
        decode=decode_parts,
        mixed_s=np.maximum(total(step_parts(model, grid, mixed)), total(decode_parts)),
        share=share,
        felt=1.0 - (1.0 - share) ** (waves * ranks),
        slowest=slowest,
        per_step=per_step,
        room=room,
        sustained=np.where(arriving > 0.0, room / np.maximum(arriving, 1e-9), 1e9),
        waves=waves,
    )


def _tpot_parts(cycle: _Cycle, model: ModelSpec, grid: Grid) -> Parts:
    decode_s = total(cycle.decode)
    extra = cycle.mixed_s - decode_s
    parts = dict(cycle.decode)
    parts["prefill_share"] = cycle.share * extra
    waiting = np.maximum(cycle.slowest - cycle.share, 0.0) * extra
    parts["bubble"] = waiting + (_uneven(model, grid) - 1.0) * decode_s
    parts["stragglers"] = np.maximum(cycle.felt - cycle.slowest, 0.0) * extra
    return parts


def _ttft_parts(cycle: _Cycle, grid: Grid, workload: Workload, *, running: Floats) -> Parts:
    isl = float(workload.isl)
    decode_s = total(cycle.decode)
    chunks = np.ceil(isl / cycle.room)
    # Chunks follow one another through the pipeline stage by stage.
    own = cycle.mixed_s * (1.0 + (chunks - 1.0) / grid.pp)
    service = cycle.mixed_s * isl / cycle.per_step / cycle.waves
    longest = np.maximum(running - 1.0, 0.0) / 2.0 * service
    random = service * cycle.share / (2.0 * np.maximum(1.0 - cycle.share, 1e-3))
    convoy = grid.coefficients.convoy
    queue = convoy * longest + (1.0 - convoy) * np.minimum(random, longest)
    return {
        "host": np.full_like(own, grid.coefficients.host_request_s[grid.device.kind]),
        "step_wait": np.where(running > 1.0, 0.5 * decode_s, 0.0),
        "queue": queue,
        "prefill": own,
    }


def _uneven(model: ModelSpec, grid: Grid) -> Floats:
    """The longest stage over the mean one: ceil(L / pp) * pp / L."""
    layers = float(model.num_layers)
    return np.ceil(layers / grid.pp) * grid.pp / layers
