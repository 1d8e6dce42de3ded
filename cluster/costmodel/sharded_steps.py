"""How long does a step take under per-operator dims? The seconds of `sharding`'s walks.

Kernels: `steps.step_parts` of a case whose chain and cores are cut as the dims say. A core that is
whole on every rank is one of tp times the heads and KV elements, which tp then divides.
Collectives: the walk's, each by `collectives`, in place of the all-reduces of the Megatron scheme;
what experts on other data-parallel ranks and the output head exchange stays. With the residual
stream cut by tokens, a rank norms and hands on 1/tp of it, the embedding is reduce-scattered and
the rows that logits are computed of are gathered.

Shapes: k operators, a layer kinds, n layouts. Invariants: Megatron's dims give `step_parts`
exactly; with tp = 1 dims change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel import attention, collectives, compute
from cluster.costmodel.case import Case
from cluster.costmodel.chain import EXPERT, EXPERTS, FFN, LATENT, PROJECTIONS, TENSOR, WHOLE
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.collectives import Fabric
from cluster.costmodel.sharding import Recipe
from cluster.costmodel.sharding_states import Collective, Cut, Exchange, Experts, Unit
from cluster.costmodel.steps import Parts, StepLoad, step_parts
from cluster.model.layout import LayoutTable
from cluster.model.model_spec import ModelSpec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_BY_COLLECTIVE = {
    Collective.ALL_REDUCE: collectives.all_reduce,
    Collective.ALL_GATHER: collectives.all_gather,
    Collective.REDUCE_SCATTER: collectives.reduce_scatter,
}
_PARTS = ((PROJECTIONS, "projections"), (FFN, "ffn"), (EXPERTS, "experts"))


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Recipes of n layouts as columns: `cuts` (k, n), `whole_cores` (a, n), `tokens_cut` (n,).

    `uses` (m, n) counts each of the m `exchanges` in a step.
    """

    cuts: Ints
    whole_cores: Bools
    tokens_cut: Bools
    exchanges: tuple[Exchange, ...]
    uses: Floats

    @classmethod
    def of(cls, recipes: Sequence[Recipe], rows: Ints) -> Sharding:
        """Columns where layout i follows `recipes[rows[i]]`."""
        kinds = tuple(sorted({exchange for made in recipes for exchange, _ in made.exchanges}))
        uses = np.array(
            [[float(dict(made.exchanges).get(kind, 0)) for made in recipes] for kind in kinds]
        ).reshape(len(kinds), len(recipes))
        return cls(
            cuts=np.array([made.cuts for made in recipes], dtype=np.int64).T[:, rows],
            whole_cores=np.array([made.whole_cores for made in recipes], dtype=bool).T[:, rows],
            tokens_cut=np.array([made.tokens_cut for made in recipes], dtype=bool)[rows],
            exchanges=kinds,
            uses=uses[:, rows],
        )


def expert_kinds(model: ModelSpec, table: LayoutTable) -> Ints:
    """What each layout does with routed experts, codes of `sharding.Experts`, (n,)."""
    if not model.experts:
        return np.full(len(table), int(Experts.CUT))
    alone = np.where(table.moe_ep > 1, int(Experts.SPREAD), int(Experts.CUT))
    return np.where(table.dp > 1, int(Experts.EXCHANGED), alone)


@dataclass(frozen=True, kw_only=True)
class Moves:
    """Seconds of the collectives of one step, as `step_parts` scales them."""

    case: Case
    load: StepLoad
    coefficients: Coefficients

    def exchange_s(self, exchange: Exchange) -> Floats:
        """One collective over the tensor-parallel ranks, (n,)."""
        if exchange.unit is Unit.NORM:
            size = 4.0 * self.load.tokens
        elif exchange.unit is Unit.VISIT:
            visits, _ = compute.expert_load(self.case, self.load.routed, self.coefficients)
            size = visits * exchange.features * self.case.machine.width
        else:
            size = self.load.tokens * exchange.features * self.case.machine.width
        return self._over_tp(exchange.collective, size)

    def stream_s(self, *, tokens_cut: bool) -> Parts:
        """What the residual stream costs beside the blocks, by part, (n,) each."""
        case, load, width = self.case, self.load, self.case.machine.width
        size = load.tokens * case.body.hidden * width
        passes = self.coefficients.value("elementwise.passes") * case.body.layers * case.body.hidden
        elementwise = passes * load.tokens * width / case.machine.memory_bandwidth * self.build
        own = share(load.tokens, case.grid.tp) if tokens_cut else load.tokens
        part = own / np.maximum(load.tokens, 1e-12)
        hop = collectives.send_recv(
            size * part, leaves_domain=case.grid.stage_leaves_domain, fabric=self._fabric
        )
        parts = {
            "elementwise": elementwise * part,
            "send_recv": (case.grid.pp - 1.0) * hop * self.build,
            "all_reduce": self._over_tp(Collective.ALL_REDUCE, size),
        }
        if tokens_cut:
            sampled = load.sampled * case.body.hidden * width
            del parts["all_reduce"]
            parts["reduce_scatter"] = self._over_tp(Collective.REDUCE_SCATTER, size)
            parts["all_gather"] = self._over_tp(Collective.ALL_GATHER, sampled)
        return parts

    @cached_property
    def build(self) -> Floats:
        """What the engine's version does to kernels and collectives, (n,)."""
        values, engine = self.coefficients.values, self.case.engine
        prefill = np.where(self.load.prefill > 0.0, values[engine.build_prefill], 1.0)
        return np.asarray(values[engine.build_time] * prefill)

    @cached_property
    def _fabric(self) -> Fabric:
        return self.case.fabric(self.coefficients)

    def _over_tp(self, collective: Collective, size: Floats) -> Floats:
        moved = _BY_COLLECTIVE[collective](size, self.case.grid.tp_ring, self._fabric)
        return np.asarray(moved * self.build)


def share(tokens: Floats, ranks: Floats) -> Floats:
    """Tokens of the fullest of `ranks` ranks that share them."""
    return np.asarray(np.maximum(tokens / ranks, np.minimum(tokens, 1.0)))


def sharded_parts(
    case: Case, sharding: Sharding, load: StepLoad, coefficients: Coefficients
) -> Parts:
    """`steps.step_parts` under the dims of each layout: seconds by part name, (n,) each."""
    moves = Moves(case=case, load=load, coefficients=coefficients)
    parts = step_parts(cut_case(case, sharding), load, coefficients)
    parts |= _kernels(case, sharding, moves, parts)
    moved = {name: np.zeros_like(load.tokens) for name in Collective}
    for exchange, uses in zip(sharding.exchanges, sharding.uses, strict=True):
        moved[exchange.collective] = moved[exchange.collective] + uses * moves.exchange_s(exchange)
    whole, cut = moves.stream_s(tokens_cut=False), moves.stream_s(tokens_cut=True)
    parts["all_reduce"] = np.zeros_like(load.tokens)  # those of the Megatron scheme go
    for name in ("elementwise", "send_recv"):
        parts[name] = np.where(sharding.tokens_cut, cut[name], whole[name])
    for name in Collective:
        stream = np.where(sharding.tokens_cut, cut.get(name.value, 0.0), whole.get(name.value, 0.0))
        parts[name.value] = parts[name.value] + moved[name] + stream
    return parts


def cut_case(case: Case, sharding: Sharding) -> Case:
    """The case whose chain and cores are cut as the dims say, tokens apart."""
    cuts, chain = sharding.cuts, case.chain
    uncut = (cuts == Cut.WHOLE) | (cuts == Cut.TOKENS)
    held = np.where(chain.cut == EXPERT, EXPERT, TENSOR)
    # A matrix that nobody cuts has no direction: it keeps that of the scheme.
    by_row = np.where(uncut | (case.grid.tp == 1.0), chain.by_row, cuts == Cut.ROW)
    return replace(
        case,
        chain=replace(chain, cut=np.where(uncut, WHOLE, held), by_row=by_row),
        cores=_whole_cores(case, sharding.whole_cores).cores,
    )


def _whole_cores(case: Case, whole: Bools) -> Case:
    cores, tp = case.cores, case.grid.tp
    times = np.where(whole, tp, 1.0)
    cached = np.where(cores.kind == LATENT, 1.0, times)
    return replace(
        case,
        cores=replace(
            cores,
            heads=cores.heads * times,
            kv_heads=cores.kv_heads * times,
            kv_elements=cores.kv_elements * cached,
            state_elements=cores.state_elements * cached,
        ),
    )


def _kernels(case: Case, sharding: Sharding, moves: Moves, parts: Parts) -> Parts:
    """Corrections where an operator sees a share of the tokens, or experts are whole."""
    chain, cuts = case.chain, sharding.cuts
    cut = cut_case(case, sharding)
    experts = (chain.part == EXPERTS) & (cuts == Cut.WHOLE)
    wrong = (cuts == Cut.TOKENS) | experts
    if not wrong.any():
        return {}
    seen = _tokens(moves.load)
    before = compute.operators_s(cut, seen, moves.coefficients)
    fewer = replace(seen, here=share(seen.here, case.grid.tp))
    after = np.where(
        experts,
        compute.operators_s(_unshared_experts(cut), seen, moves.coefficients),
        compute.operators_s(cut, fewer, moves.coefficients),
    )
    change = np.where(wrong, after - before, 0.0) * moves.build
    return {
        name: np.maximum(parts[name] + np.where(chain.part == code, change, 0.0).sum(axis=0), 0.0)
        for code, name in _PARTS
    }


def _tokens(load: StepLoad) -> compute.Tokens:
    return compute.Tokens(here=load.tokens, sampled=load.sampled, routed=load.routed)


def _unshared_experts(case: Case) -> Case:
    return replace(case, grid=replace(case.grid, moe_tp=np.ones_like(case.grid.tp)))


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What each way to run an operator or a core costs in one step, all layers, seconds.

    `operators` (4, k, n) by `sharding.Cut`; `cores` (2, a, n): heads cut, whole on every rank.
    """

    operators: Floats
    cores: Floats


def prices(case: Case, load: StepLoad, coefficients: Coefficients) -> Prices:
    """The terms that `sharded_parts` adds up."""
    moves = Moves(case=case, load=load, coefficients=coefficients)
    seen = _tokens(load)
    fewer = replace(seen, here=share(seen.here, case.grid.tp))
    shape = (len(case.chain.count), len(load.tokens))
    operators = []
    for cut, tokens in ((Cut.COLUMN, seen), (Cut.ROW, seen), (Cut.WHOLE, seen), (Cut.WHOLE, fewer)):
        whole = cut is Cut.WHOLE
        sharding = Sharding(
            cuts=np.full(shape, int(cut)),
            whole_cores=np.zeros((len(case.cores.count), shape[1]), dtype=bool),
            tokens_cut=np.zeros(shape[1], dtype=bool),
            exchanges=(),
            uses=np.zeros((0, shape[1])),
        )
        made = cut_case(_unshared_experts(case) if whole else case, sharding)
        operators.append(compute.operators_s(made, tokens, coefficients) * moves.build)
    cores = []
    for whole in (False, True):
        made = _whole_cores(case, np.full((len(case.cores.count), shape[1]), whole))
        decode = attention.decode_s(
            made, load.decode, load.context, coefficients, queries=load.queries
        )
        prefill = attention.prefill_s(
            made, load.prefill, load.prompt, coefficients, cached=load.cached
        )
        cores.append(case.cores.count * (decode + prefill) * moves.build)
    return Prices(operators=np.stack(operators), cores=np.stack(cores))
