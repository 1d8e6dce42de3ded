"""How long does a step take, by the cost model? Its formulas, tabulated once for one layout.

A step's cost is a sum of parts that each depend on little:

    t = build * (L(tokens) + H(sampled) + E(routed) + A(tokens skew(routed))
                 + floor + sum of contexts' reads + prompts' products) + host

L matrix products and all-reduces, H the output head, E experts, A their all-to-all. Attention of
decoding sequences is linear in their number at a given mean context, that of a prompt chunk in its
tokens at its mean position. L, H, E, A and the context's curve are read off tables of a few hundred
points, between which they are nearly straight; tests hold the sum to `steps.step_parts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel import attention
from cluster.costmodel.case import Case
from cluster.costmodel.chain import LINEAR
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.compute import skew
from cluster.costmodel.steps import Parts, StepLoad, prompt_host_s, step_parts
from cluster.sim.curve import Curve
from cluster.sim.times import Piece

Floats = NDArray[np.float64]
_MOST = 1 << 22  # contexts and routed tokens that tables reach to; beyond, the last line goes on


@dataclass(frozen=True, kw_only=True)
class _Core:
    """Attention of prompts in one kind of layer: seconds per token, visited token and so on."""

    count: float
    flop_s: float  # per prompt token and visited token
    fixed: float  # visited tokens, of linear attention; negative: it grows with the position
    index_s: float  # per prompt token and position, of a sparse selection
    half: float
    limit: float
    store_s: float  # per token stored or read
    floor_s: float


class ModelledTimes:
    """`StepTimes` of one row of a case. `draft_share`: drafting over a decode step."""

    def __init__(
        self,
        case: Case,
        coefficients: Coefficients,
        *,
        queries: int = 1,
        draft_share: float = 0.0,
        offloaded: float = 0.0,
        most_tokens: int = 16384,
    ) -> None:
        values, engine = coefficients.values, case.engine
        self._queries = queries
        self._drafts = 1.0 + draft_share
        self._build = _one(values[engine.build_time])
        self._build_prefill = self._build * _one(values[engine.build_prefill])
        self._step_s = _one(values[engine.step_s]) + offloaded / _one(case.machine.host_bandwidth)
        self._sequence_s = _one(values[engine.sequence_s])
        self._request_s = _one(values[engine.request_s] * values[engine.build_request])
        self._token_s = _one(values[engine.prompt_token_s] * values[engine.build_request])
        self._launch_s = _one(prompt_host_s(case, coefficients))
        self._stages = _one(case.grid.pp)
        # The longest stage sets the pace of a pipeline.
        layers = _one(case.body.layers)
        self._uneven = -(-layers // self._stages) * self._stages / layers
        tables = _Tables(case, coefficients, most_tokens=most_tokens)
        # By number of tokens: an index is read faster than a curve.
        self._linear = [tables.linear(float(n)) for n in range(most_tokens + 1)]
        self._head = [tables.head(float(n)) for n in range(most_tokens + 1)]
        self._experts, self._exchange = tables.experts, tables.exchange
        self._skew = tables.skew
        self._read, self._floor_s = _decode_attention(case, coefficients, queries=queries)
        self._cores = _prompt_cores(case, coefficients)

    def decode_s(self, sequences: int, context: float, routed: int) -> float:
        """See `StepTimes`."""
        tokens = sequences * self._queries
        seconds = self._linear[tokens] + self._head[tokens] + self._floor_s
        seconds += sequences * self._read(context / sequences)
        if self._experts is not None:
            seconds += self._routed_s(tokens, routed)
        seconds = seconds * self._build + self._step_s + sequences * self._sequence_s
        return seconds * self._drafts * self._uneven

    def mixed_s(
        self, sequences: int, context: float, pieces: Sequence[Piece], routed: int
    ) -> float:
        """See `StepTimes`."""
        tokens = sampled = sequences * self._queries
        products = 0.0
        for piece in pieces:
            tokens += piece.tokens
            sampled += piece.start + piece.tokens >= piece.prompt
            products += self._prompt_s(piece)
        for core in self._cores:
            products += core.count * core.floor_s
        seconds = self._linear[tokens] + self._head[sampled] + products
        if sequences:
            seconds += self._floor_s + sequences * self._read(context / sequences)
        if self._experts is not None:
            seconds += self._routed_s(tokens, routed)
        seconds = seconds * self._build_prefill + self._step_s + sequences * self._sequence_s
        seconds *= self._uneven
        return max(seconds, self.decode_s(sequences, context, routed)) if sequences else seconds

    def lag_s(self, prompt_tokens: int, chunks: int) -> float:
        """See `StepTimes`: parsing the prompt, and launching its steps kernel by kernel."""
        launches = 1.0 + (chunks - 1) / self._stages
        return self._request_s + self._token_s * prompt_tokens + self._launch_s * launches

    def _routed_s(self, tokens: int, routed: int) -> float:
        assert self._experts is not None
        return self._experts(routed) + self._exchange(tokens * self._skew(routed))

    def _prompt_s(self, piece: Piece) -> float:
        mean = piece.start + piece.tokens / 2.0
        seconds = 0.0
        for core in self._cores:
            seen = mean if mean < core.limit else core.limit
            visited = seen if core.fixed < 0.0 else core.fixed
            work = piece.tokens * (visited * core.flop_s + mean * core.index_s)
            if core.fixed < 0.0:
                work *= 1.0 + core.half / piece.prompt
            stored = (piece.tokens + seen) * core.store_s
            seconds += core.count * (work if work > stored else stored)
        return seconds


class _Tables:
    """The four curves over numbers of tokens, and the skew of routing."""

    def __init__(self, case: Case, coefficients: Coefficients, *, most_tokens: int) -> None:
        values, engine = coefficients.values, case.engine
        build = _one(values[engine.build_time])
        prefill = build * _one(values[engine.build_prefill])
        grid = _grid(most_tokens)
        moe = bool(_one(case.body.moe_layers) > 0.0)
        quiet = _evaluate(case, coefficients, prefill=grid, routed=np.zeros_like(grid))
        kept = [name for name in quiet if name not in _APART]
        whole = sum((quiet[name] for name in kept), np.zeros_like(grid))
        self.linear = Curve(grid.tolist(), (whole / prefill).tolist())
        loud = _evaluate(case, coefficients, decode=grid, routed=np.zeros_like(grid))
        gathered = loud["all_gather"] / build - quiet["all_gather"] / prefill
        self.head = Curve([0.0, *grid], [0.0, *(loud["head"] / build + gathered)])
        self.experts: Curve | None = None
        self.exchange = self.skew = Curve([0.0, 1.0], [0.0, 0.0])
        if moe:
            wide = _grid(_MOST)
            busy = _evaluate(case, coefficients, prefill=np.ones_like(wide), routed=wide)
            self.experts = Curve([0.0, *wide], [0.0, *(busy["experts"] / prefill)])
            self.exchange = Curve([0.0, *grid], [0.0, *(quiet["all_to_all"] / prefill)])
            many = _repeated(case, len(wide))
            self.skew = Curve([0.0, *wide], [1.0, *skew(many, wide, coefficients)])


_APART = frozenset({"attention", "head", "experts", "all_to_all", "host", "offload"})


def _grid(most: int) -> Floats:
    """1, 2, 3 … 64, then 24 to a doubling, up to `most`."""
    steps = int(np.ceil(24 * np.log2(max(most, 65) / 64.0)))
    wide = np.unique(np.rint(64.0 * 2.0 ** (np.arange(1, steps + 1) / 24.0)))
    return np.concatenate([np.arange(1.0, 65.0), wide])


def _repeated(case: Case, rows: int) -> Case:
    """The case's one layout as `rows` equal ones."""
    columns = {
        name: np.repeat(getattr(case.grid, name), rows)
        for name in ("tp", "dp", "pp", "moe_tp", "moe_ep", "devices", "domain")
    }
    return replace(case, grid=replace(case.grid, **columns))


def _evaluate(
    case: Case,
    coefficients: Coefficients,
    *,
    routed: Floats,
    decode: Floats | None = None,
    prefill: Floats | None = None,
) -> Parts:
    """Parts of steps of a short context; prompts are so long that none of them ends."""
    none = np.zeros_like(routed)
    load = StepLoad(
        decode=none if decode is None else decode,
        context=none + 1.0,
        prefill=none if prefill is None else prefill,
        prompt=none + 1e15,
        routed=routed,
        queries=none + 1.0,
        cached=none,
        offloaded=none,
    )
    parts = step_parts(_repeated(case, len(routed)), load, coefficients)
    return {name: np.broadcast_to(part, routed.shape) for name, part in parts.items()}


def _decode_attention(
    case: Case, coefficients: Coefficients, *, queries: int
) -> tuple[Curve, float]:
    """Seconds of a sequence by its context, and seconds whatever there is."""
    contexts = _grid(_MOST)
    many, one = _repeated(case, len(contexts)), np.ones_like(contexts)

    def layers_s(sequences: float) -> Floats:
        seconds = attention.decode_s(
            many, one * sequences, contexts, coefficients, queries=one * queries
        )
        return np.asarray((case.cores.count * seconds).sum(axis=0))

    single, double = layers_s(1.0), layers_s(2.0)
    return Curve(contexts.tolist(), (double - single).tolist()), float((2.0 * single - double)[0])


def _prompt_cores(case: Case, coefficients: Coefficients) -> tuple[_Core, ...]:
    cores, machine, values = case.cores, case.machine, coefficients.values
    peak = _one(machine.peak)
    width = cores.qk_dim + cores.v_dim
    made = []
    shards = attention.kv_shards(case)
    for row in range(len(cores.count)):
        linear = cores.kind[row, 0] == LINEAR
        rate = peak * _one(values[cores.prefill_mfu[row]])
        bandwidth = _one(machine.memory_bandwidth) * _one(values[cores.decode_mbu[row]])
        stored = cores.kv_elements[row, 0] * _one(case.body.kv_bytes) / shards[row, 0]
        heads = cores.heads[row, 0] / _one(case.grid.tp)
        pair_flops = 2.0 * heads * width[row, 0]
        index_flops = 2.0 * cores.index_heads[row, 0] * cores.index_dim[row, 0]
        made.append(
            _Core(
                count=float(cores.count[row, 0]),
                flop_s=float(pair_flops / rate),
                fixed=float(cores.qk_dim[row, 0]) if linear else -1.0,
                index_s=float(index_flops / rate),
                half=_one(values[cores.half_context[row]]),
                limit=float(cores.limit[row, 0]),
                store_s=float(stored / bandwidth),
                floor_s=_one(values[cores.floor_s[row]]),
            )
        )
    return tuple(made)


def _one(value: object) -> float:
    """The only entry of a column."""
    return float(np.asarray(value).reshape(-1)[0])
