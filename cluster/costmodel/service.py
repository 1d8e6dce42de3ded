"""What do users see when c requests are always in flight? Chunked prefill between decodes, settled.

Every request brings P fresh prompt tokens (ISL less what the prefix cache holds) and takes OSL - 1
tokens of decode, `accepted` of them per step. b decoding sequences bring
lam = (b - 1) P accepted / (OSL - 1) prompt tokens of others per step. A mixed step carries up to
C - b of them (C the chunk). With share f = lam / p of mixed steps carrying p tokens:

    TPOT = ((1 - f) t_decode + f t_mixed) / accepted,
    TTFT = host + wait + queue + slot + own chunks,

and Little's law, c = X (TTFT + (OSL - 1) TPOT), closes the loop: it says how many of the c are
decoding, and how long the rest waits when prefill or memory is the limit. Engines that keep
prompts apart (SGLang) stop decoding for a prompt: t_mixed = t_decode + t_prefill.

The queue has two parts. A share `burst` of requests arrives with all others, as at the start of a
benchmark (a tenth where ten requests per slot are run; all of them, again and again, where prompts
go first and hold requests in step), and waits for half of them at the rate of full chunks. The
others wait like in an M/D/1 queue, rho/(2 (1 - rho)) of a service. Where lengths are equal, `slots`
requests wait for a place (X^-1 each).

With pp stages, min(pp, running) micro-batches share the pipeline. Unequal steps make stages wait:
a closed cycle of pp customers and pp stations takes 1 + CV^2 (pp - 1)/pp times its mean (exact for
exponential steps, Reiser and Lavenberg 1980; scaled by the squared variation), and never more than
if one mixed micro-batch delayed all. With experts spread over dp ranks every rank waits for a mixed
one (stragglers).

Shapes: (n,). Invariants: parts sum to TPOT and TTFT; c / X >= TTFT + (OSL - 1) TPOT.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.case import Case
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.steps import Parts, StepLoad, prompt_host_s, step_parts, total

Floats = NDArray[np.float64]
_BLOCK = 4096  # layouts evaluated at once: temporaries stay in a core's cache
_ROUNDS = 4  # of the damped fixed point over the number of decoding sequences


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What is asked of one data-parallel rank, (n,) each.

    `cached` prompt tokens need no prefill; `equal`: all requests have one length; `queries` tokens
    are scored per sequence and step, `accepted` of them kept on average, drafting them costs
    `draft_share` of a step; `offloaded` bytes of weights lie on the host; `chunk` tokens a step;
    `offered` requests in flight, of which `admitted` may run.
    """

    isl: Floats
    osl: Floats
    cached: Floats
    equal: NDArray[np.bool_]
    queries: Floats
    accepted: Floats
    draft_share: Floats
    offloaded: Floats
    chunk: Floats
    offered: Floats
    admitted: Floats

    def rows(self, chosen: slice) -> Demand:
        """Some of the layouts."""
        return Demand(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    @property
    def fresh(self) -> Floats:
        """Prompt tokens of a request that need prefill."""
        return np.maximum(self.isl - self.cached, 1.0)

    @property
    def tokens(self) -> Floats:
        """Output tokens after the first."""
        return np.maximum(self.osl - 1.0, 1.0)

    @property
    def running(self) -> Floats:
        """Requests that run at a time."""
        return np.asarray(np.maximum(np.minimum(self.offered, self.admitted), 1.0))


@dataclass(frozen=True, kw_only=True)
class SteadyState:
    """The operating point. Rates and counts are per data-parallel rank, times in seconds.

    `prefill_s` is the time from the start of a prompt's prefill to its first token; `busy` the
    share of time spent on prompts; `burst_s` how long the last of a burst waits; `decode_s` and
    `mixed_s` a step without and with prompt tokens, per output token.
    """

    tpot_parts: Parts
    ttft_parts: Parts
    decoding: Floats
    requests_per_s: Floats
    prefill_s: Floats
    busy: Floats
    burst_s: Floats
    decode_s: Floats
    mixed_s: Floats
    mixed_share: Floats

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
    decode_s: Floats  # of a step, drafts included
    mixed_s: Floats
    prompt_s: Floats  # what a mixed step spends on its prompts (engines that mix: the whole step)
    share: Floats  # of steps that are mixed, for this micro-batch
    felt: Floats  # of steps delayed by any rank
    per_step: Floats  # prompt tokens a mixed step carries
    room: Floats
    sustained: Floats  # decoding sequences the prefill capacity feeds, over those assumed
    waves: Floats


def steady_state(case: Case, demand: Demand, coefficients: Coefficients) -> SteadyState:
    """The settled loop for `demand`; many layouts of one model in blocks that fit the cache."""
    layouts = len(demand.isl)
    if layouts <= _BLOCK or case.chain.count.shape[1] > 1:
        return _settled(case, demand, coefficients)
    return _joined(
        [
            _settled(case.rows(block), demand.rows(block), coefficients)
            for block in (slice(i, i + _BLOCK) for i in range(0, layouts, _BLOCK))
        ]
    )


def _joined(states: list[SteadyState]) -> SteadyState:
    """States of blocks of layouts as one."""
    made: dict[str, Parts | Floats] = {}
    for field in fields(SteadyState):
        values = [getattr(state, field.name) for state in states]
        if isinstance(values[0], dict):
            made[field.name] = {
                name: np.concatenate([value[name] for value in values]) for name in values[0]
            }
        else:
            made[field.name] = np.concatenate(values)
    return SteadyState(**made)  # type: ignore[arg-type]  # the field's own types


def _settled(case: Case, demand: Demand, coefficients: Coefficients) -> SteadyState:
    running = demand.running
    full_s = _full_chunk_s(case, demand, coefficients)
    decoding = running
    for _ in range(_ROUNDS):
        cycle = _cycle(case, demand, coefficients, decoding=decoding)
        tpot = total(_tpot_parts(case, demand, cycle))
        decode_s = demand.tokens * tpot
        ttft = total(_ttft_parts(case, demand, cycle, coefficients, full_s=full_s, tpot=tpot))
        # Little's law and the prefill capacity each bound how many can be decoding.
        target = np.minimum(running * decode_s / (ttft + decode_s), decoding * cycle.sustained)
        decoding = np.maximum(np.sqrt(decoding * target), 1.0)
    cycle = _cycle(case, demand, coefficients, decoding=decoding)
    tpot_parts = _tpot_parts(case, demand, cycle)
    tpot = total(tpot_parts)
    ttft_parts = _ttft_parts(case, demand, cycle, coefficients, full_s=full_s, tpot=tpot)
    decode_s, ttft = demand.tokens * tpot, total(ttft_parts)
    served = decoding * np.minimum(cycle.sustained, 1.0)
    rate = np.minimum(served / decode_s, running / (ttft + decode_s))
    waiting = np.maximum(demand.offered / rate - decode_s - ttft, 0.0)
    ttft_parts["queue"] = ttft_parts["queue"] + waiting
    return SteadyState(
        tpot_parts=tpot_parts,
        ttft_parts=ttft_parts,
        decoding=decoding,
        requests_per_s=rate,
        prefill_s=ttft_parts["prefill"],
        busy=_busy(cycle, demand, tpot),
        burst_s=np.maximum(running - 1.0, 0.0) * full_s,
        decode_s=cycle.decode_s / demand.accepted,
        mixed_s=cycle.mixed_s / demand.accepted,
        mixed_share=cycle.share,
    )


def prefill_only(case: Case, demand: Demand, coefficients: Coefficients) -> tuple[Floats, Parts]:
    """Prompt tokens/s of a rank that does nothing else, and the parts of one such step."""
    load = _load(demand, decode=np.zeros_like(demand.isl), prefill=demand.chunk)
    parts = step_parts(case, _routed(load, demand.chunk * case.grid.dp), coefficients)
    stage = (total(parts) - parts["send_recv"]) / case.grid.pp * _uneven(case)
    return demand.chunk / np.maximum(stage, 1e-12), parts


def _load(demand: Demand, *, decode: Floats, prefill: Floats) -> StepLoad:
    return StepLoad(
        decode=decode,
        context=demand.isl + demand.osl / 2.0,
        prefill=prefill,
        prompt=demand.isl,
        routed=decode,
        queries=demand.queries,
        cached=demand.cached,
        offloaded=demand.offloaded,
    )


def _routed(load: StepLoad, routed: Floats) -> StepLoad:
    return replace(load, routed=routed)


def _full_chunk_s(case: Case, demand: Demand, coefficients: Coefficients) -> Floats:
    """Seconds per prompt where prompts fill the chunk, as in a burst."""
    tokens = np.minimum(demand.chunk, demand.running * demand.fresh)
    load = _load(demand, decode=np.zeros_like(tokens), prefill=tokens)
    ranks = np.where(case.is_moe, case.grid.dp, 1.0)
    parts = step_parts(case, _routed(load, tokens * ranks), coefficients)
    waves = np.clip(np.floor(demand.running), 1.0, case.grid.pp)
    return np.asarray(total(parts) * demand.fresh / tokens / waves)


@dataclass(frozen=True)
class _Batches:
    """What the steps of a replica carry while some sequences decode, (n,) each."""

    without: StepLoad  # a step of decoding sequences alone
    mixed: StepLoad  # a step with prompt tokens
    waves: Floats  # micro-batches in the pipeline
    room: Floats  # prompt tokens that fit into a step
    arriving: Floats  # prompt tokens that come per step
    per_step: Floats  # prompt tokens of a mixed step
    share: Floats  # share of steps that are mixed, of one rank
    felt: Floats  # share of steps in which some data-parallel rank mixes


def _batches(case: Case, demand: Demand, decoding: Floats) -> _Batches:
    # Micro-batches in the pipeline: prompts fill it as well as decoding sequences do.
    waves = np.clip(np.floor(demand.running), 1.0, case.grid.pp)
    batch = decoding / waves
    others = batch * np.maximum(1.0 - 1.0 / np.maximum(decoding, 1.0), 0.0)
    room = np.maximum(demand.chunk - others, 1.0)
    arriving = others * demand.fresh * demand.accepted / demand.tokens
    per_step = np.minimum(room, np.maximum(demand.fresh, arriving))
    share = np.minimum(arriving / per_step, 1.0)
    ranks = np.where(case.is_moe, case.grid.dp, 1.0)
    any_rank = 1.0 - (1.0 - share) ** ranks
    mixing = np.where(any_rank > 0.0, ranks * share / np.maximum(any_rank, 1e-9), 1.0)
    # Sequences that decode in a step with prompt tokens.
    beside = np.where(case.engine.mixes, others, 0.0)
    routed = demand.queries * ranks
    without = _load(demand, decode=batch, prefill=np.zeros_like(batch))
    mixed = _load(demand, decode=beside, prefill=per_step)
    return _Batches(
        without=_routed(without, batch * routed),
        mixed=_routed(mixed, beside * routed + per_step * mixing),
        waves=waves,
        room=room,
        arriving=arriving,
        per_step=per_step,
        share=share,
        felt=any_rank,
    )


def step_loads(case: Case, demand: Demand, decoding: Floats) -> tuple[StepLoad, StepLoad]:
    """What a step without and one with prompts carry while `decoding` sequences decode.

    For whoever prices the two steps otherwise than `step_parts` does.
    """
    batches = _batches(case, demand, decoding)
    return batches.without, batches.mixed


def _cycle(case: Case, demand: Demand, coefficients: Coefficients, *, decoding: Floats) -> _Cycle:
    batches = _batches(case, demand, decoding)
    mixes = case.engine.mixes
    decode = step_parts(case, batches.without, coefficients)
    mixed = total(step_parts(case, batches.mixed, coefficients))
    drafts = total(decode) * demand.draft_share
    decode_s = total(decode) + drafts
    arriving, room = batches.arriving, batches.room
    return _Cycle(
        decode=decode | {"drafts": drafts},
        decode_s=decode_s,
        mixed_s=np.where(mixes, np.maximum(mixed, decode_s), mixed + decode_s),
        prompt_s=np.where(mixes, np.maximum(mixed, decode_s), mixed),
        share=batches.share,
        felt=batches.felt,
        per_step=batches.per_step,
        room=room,
        sustained=np.where(arriving > 0.0, room / np.maximum(arriving, 1e-9), 1e9),
        waves=batches.waves,
    )


def _tpot_parts(case: Case, demand: Demand, cycle: _Cycle) -> Parts:
    extra = cycle.mixed_s - cycle.decode_s
    parts = dict(cycle.decode)
    parts["prefill_share"] = cycle.share * extra
    parts["stragglers"] = np.maximum(cycle.felt - cycle.share, 0.0) * extra
    mean = cycle.decode_s + cycle.felt * extra
    variance = cycle.felt * (1.0 - cycle.felt) * extra**2
    waiting = variance / np.maximum(mean, 1e-12) * (cycle.waves - 1.0) / cycle.waves
    slowest = 1.0 - (1.0 - cycle.felt) ** cycle.waves
    waiting = np.minimum(waiting, np.maximum(slowest - cycle.felt, 0.0) * extra)
    parts["bubble"] = waiting + (_uneven(case) - 1.0) * cycle.decode_s
    return {name: seconds / demand.accepted for name, seconds in parts.items()}


def _ttft_parts(
    case: Case,
    demand: Demand,
    cycle: _Cycle,
    coefficients: Coefficients,
    *,
    full_s: Floats,
    tpot: Floats,
) -> Parts:
    values, engine = coefficients.values, case.engine
    chunks = np.ceil(demand.fresh / cycle.room)
    # Chunks follow one another through the pipeline stage by stage.
    launch_s = prompt_host_s(case, coefficients)
    pieces = np.maximum(demand.fresh / cycle.per_step, 1.0)  # the last chunk is a part of one
    own = cycle.prompt_s * (1.0 + (pieces - 1.0) / case.grid.pp)
    own = own + launch_s * (1.0 + (chunks - 1.0) / case.grid.pp)
    service = cycle.prompt_s * demand.fresh / cycle.per_step / cycle.waves
    busy = _busy(cycle, demand, tpot)
    longest = np.maximum(demand.running - 1.0, 0.0) / 2.0 * full_s
    random = values[engine.random] * service * busy / (2.0 * (1.0 - busy))
    burst = burst_share(case, demand, coefficients)
    ranked = (case.grid.dp > 1.0) & case.is_moe
    waited = np.where(demand.running > 1.0, values[engine.wait_steps], 0.0)
    waited = waited + np.where(ranked, coefficients.value("engine.rank_wait_steps"), 0.0)
    host = values[engine.request_s] + values[engine.prompt_token_s] * demand.isl
    parts = {
        "host": host * values[engine.build_request],
        "step_wait": waited * cycle.decode_s * values[engine.build_request],
        "queue": burst * longest + np.minimum(random, longest),
        "prefill": own,
    }
    once = total(parts) + demand.tokens * tpot
    slots = np.where(demand.equal, values[engine.slots], 0.0)
    alone = demand.offered <= 1.0
    parts["slot_wait"] = np.where(alone, 0.0, slots * once / np.maximum(demand.offered, 1.0))
    return parts


def burst_share(case: Case, demand: Demand, coefficients: Coefficients) -> Floats:
    """Share of requests that arrive with all others, (n,)."""
    values, engine = coefficients.values, case.engine
    share = np.where(demand.equal, values[engine.burst_equal], values[engine.burst_drawn])
    return np.asarray(np.minimum(share * values[engine.build_burst], 1.0))


def _busy(cycle: _Cycle, demand: Demand, tpot: Floats) -> Floats:
    """Share of time that steps with prompts take, at most 0.98."""
    steps_s = np.maximum(tpot * demand.accepted, 1e-12)
    return np.asarray(np.minimum(cycle.share * cycle.mixed_s / steps_s, 0.98))


def _uneven(case: Case) -> Floats:
    """The longest stage over the mean one: ceil(L / pp) * pp / L."""
    layers = case.body.layers
    return np.asarray(np.ceil(layers / case.grid.pp) * case.grid.pp / layers)
