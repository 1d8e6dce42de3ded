"""Which dims of the fused operators are fastest? The exact minimum by dynamic programming.

What is minimised is the time of a request per output token, TPOT + TTFT / (OSL - 1), whose inverse
is throughput at a given concurrency (Little's law), made linear at the operating point that the
Megatron scheme settles at:

    w_decode t_decode(dims) + w_mixed t_mixed(dims),

in the simplest case (one stage, no queue) with a share f of steps delayed by prompts of c chunks,
w_decode = 1 - f and w_mixed = f + c / (OSL - 1). Both steps are sums over the slots of a walk of
terms that depend on the dim chosen and on the state before it only, so Bellman's recursion over
(slot, state) finds the minimum over all assignments: a walk that is not the cheapest to its state
can be exchanged for the one that is, whatever follows. Layer kinds share nothing but the residual
stream's state, which is tried both ways, and memory (`dims_front`). All rows are solved at once.

What the linear objective leaves: dims move the operating point. What is found is settled again
(`sharded_estimate`) and stands beside the Megatron row, so that it is never worse, and its
throughput is within 0.1 % of the best of all assignments, each settled by itself (tested).

Invariants: the objective is at most that of any assignment; with tp = 1 nothing is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.case import Case
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.service import Demand, SteadyState
from cluster.costmodel.sharded_steps import Moves, Prices, prices
from cluster.costmodel.sharding import Trellis, slots, spelt, trellises
from cluster.costmodel.sharding_states import Choice, Cut, Env, Exchange, Experts
from cluster.costmodel.sharding_walk import Slot
from cluster.costmodel.steps import StepLoad, total
from cluster.model.layout import Dim, Dims
from cluster.model.model_spec import ModelSpec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Codes = NDArray[np.int8]
Bools = NDArray[np.bool_]

DIMS = (Dim.COLUMN, Dim.ROW, Dim.REPLICATED)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """How much a request's time per output token grows with a second more of each step, (n,)."""

    decode: Floats
    mixed: Floats


def weights_at(case: Case, demand: Demand, state: SteadyState) -> tuple[Weights, Weights]:
    """The gradient of TPOT + TTFT / (OSL - 1) in the two steps at the operating point `state`.

    Where pipeline stages wait for mixed steps, TPOT is the lesser of two curves
    (`service._tpot_parts`): a linear one, and one that is steep in mixed steps and falls when
    decode steps slow down. Each is an objective of its own, in which a decode step weighs at least
    the time it takes, or at least nothing. Without pipeline stages both are the same.
    """
    ranks = np.where(case.is_moe, case.grid.dp, 1.0)
    felt = 1.0 - (1.0 - np.minimum(state.mixed_share, 1.0)) ** ranks
    layers, waves = case.body.layers, np.clip(np.floor(demand.running), 1.0, case.grid.pp)
    uneven = np.ceil(layers / case.grid.pp) * case.grid.pp / layers
    extra = state.mixed_s - state.decode_s
    mean = state.decode_s + felt * extra
    spread = felt * (1.0 - felt) * (waves - 1.0) / waves
    most = 1.0 - (1.0 - felt) ** waves - felt
    steep = spread * (2.0 * extra * mean - felt * extra**2) / mean**2
    capped = spread * extra > most * mean
    waits, prefills = state.ttft_parts["step_wait"], state.ttft_parts["prefill"]
    once = (prefills + state.ttft_parts["queue"]) / np.maximum(state.mixed_s, 1e-12)

    def of(linear: Bools, *, least: Floats) -> Weights:
        by_extra = felt + np.where(linear, most, steep)
        by_decode = uneven - np.where(linear, 0.0, spread * (extra / mean) ** 2)
        by_decode = by_decode - np.where(case.engine.mixes, by_extra, 0.0)
        decode = np.maximum(by_decode, least) + waits / state.decode_s / demand.tokens
        mixed = (by_extra + once / demand.tokens) / demand.accepted
        return Weights(decode=decode * (1.0 + demand.draft_share) / demand.accepted, mixed=mixed)

    own = 1.0 - felt
    return of(capped, least=own), of(np.zeros_like(capped), least=np.where(waves > 1.0, 0.0, own))


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Weighted seconds of everything a walk can meet, (…, n): what the recursion adds up.

    `stream`: what the residual stream costs beside the layers, whole and cut by tokens.
    """

    operators: Floats
    cores: Floats
    tp: Floats
    exchange: Callable[[Exchange], Floats]
    stream: tuple[Floats, Floats]

    def choice(self, trellis: Trellis, slot: Slot, step: Choice) -> Floats:
        """One way through one slot in all layers of the kind; infinite where tp does not divide."""
        if slot.row < 0:
            seconds = np.asarray(self.cores[int(step.cut is Cut.WHOLE), slot.kind])
        else:
            seconds = np.asarray(self.operators[step.cut, slot.row])
        for exchange in step.exchanges:
            seconds = seconds + trellis.count * self.exchange(exchange)
        if step.divides:
            seconds = np.where(step.divides % self.tp == 0.0, seconds, np.inf)
        return seconds


@dataclass(frozen=True, kw_only=True)
class Priced:
    """Seconds of everything a walk can meet in a step without and in one with prompts."""

    case: Case
    prices: tuple[Prices, Prices]
    moves: tuple[Moves, Moves]

    @classmethod
    def of(cls, case: Case, loads: tuple[StepLoad, StepLoad], coefficients: Coefficients) -> Priced:
        """At what the two steps carry."""
        decode, mixed = loads
        return cls(
            case=case,
            prices=(prices(case, decode, coefficients), prices(case, mixed, coefficients)),
            moves=(
                Moves(case=case, load=decode, coefficients=coefficients),
                Moves(case=case, load=mixed, coefficients=coefficients),
            ),
        )

    def terms(self, weights: Weights) -> Terms:
        """The terms of the objective."""
        known: dict[Exchange, Floats] = {}

        def weighted(parts: Iterable[Floats]) -> Floats:
            decode, mixed = parts
            return np.asarray(weights.decode * decode + weights.mixed * mixed)

        def exchange(wanted: Exchange) -> Floats:
            if wanted not in known:
                known[wanted] = weighted(move.exchange_s(wanted) for move in self.moves)
            return known[wanted]

        whole, cut = (
            weighted(total(move.stream_s(tokens_cut=tokens_cut)) for move in self.moves)
            for tokens_cut in (False, True)
        )
        return Terms(
            operators=weighted(made.operators for made in self.prices),
            cores=weighted(made.cores for made in self.prices),
            tp=self.case.grid.tp,
            exchange=exchange,
            stream=(whole, cut),
        )


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The best walk of each row: `seconds` of the objective, `codes` (slots + 1, n) into DIMS.

    The last row of `codes` is the residual stream's.
    """

    seconds: Floats
    codes: Codes


def fastest(model: ModelSpec, experts: Experts, terms: Terms) -> Chosen:
    """The exact minimum for every row, memory apart."""
    best: Chosen | None = None
    for tokens_cut in (False, True):
        seconds = terms.stream[tokens_cut]
        codes = default_codes(model, len(terms.tp))
        codes[-1] = DIMS.index(Dim.ROW if tokens_cut else Dim.REPLICATED)
        for trellis in trellises(model, experts, tokens_cut=tokens_cut):
            found, chosen = _shortest(trellis, terms)
            seconds = seconds + found
            codes[positions(model, trellis)] = chosen
        made = Chosen(seconds=seconds, codes=codes)
        best = made if best is None else _better(best, made)
    assert best is not None
    return best


def megatron_s(model: ModelSpec, experts: Experts, terms: Terms) -> Floats:
    """The objective of the default dims, (n,), kinds without choices apart."""
    seconds = terms.stream[False]
    for trellis in trellises(model, experts, tokens_cut=False):
        env = trellis.start
        for slot, stage in zip(trellis.slots, trellis.choices, strict=True):
            step = next(choice for choice in stage[env] if choice.dim is slot.default)
            seconds = seconds + terms.choice(trellis, slot, step)
            env = step.env
    return seconds


def named(model: ModelSpec, codes: Codes) -> tuple[Ints, tuple[Dims, ...]]:
    """Codes as the columns of a table: a position per row (n,), and the dims at each position."""
    unique, rows = np.unique(codes, axis=1, return_inverse=True)
    own = slots(model)
    listed = tuple(
        spelt(
            model,
            {slot: DIMS[code] for slot, code in zip(own, column, strict=False)},
            tokens_cut=DIMS[column[-1]] is Dim.ROW,
        )
        for column in unique.T.tolist()
    )
    return np.asarray(rows, dtype=np.int64).reshape(-1), listed


def default_codes(model: ModelSpec, n: int) -> Codes:
    """The Megatron scheme, (slots + 1, n)."""
    column = [DIMS.index(slot.default) for slot in slots(model)]
    column.append(DIMS.index(Dim.REPLICATED))
    return np.repeat(np.array(column, dtype=np.int8)[:, None], n, axis=1)


def positions(model: ModelSpec, trellis: Trellis) -> list[int]:
    """Rows of `codes` that belong to the slots of `trellis`."""
    return [index for index, slot in enumerate(slots(model)) if slot in trellis.slots]


def _better(one: Chosen, other: Chosen) -> Chosen:
    wins = other.seconds < one.seconds
    return Chosen(
        seconds=np.where(wins, other.seconds, one.seconds),
        codes=np.where(wins, other.codes, one.codes),
    )


def _shortest(trellis: Trellis, terms: Terms) -> tuple[Floats, Codes]:
    """Bellman's recursion through one layer kind: seconds (n,) and codes (its slots, n)."""
    n = len(terms.tp)
    values: dict[Env, Floats] = {trellis.start: np.zeros(n)}
    back: list[dict[Env, tuple[Ints, list[tuple[Env, int]]]]] = []
    for slot, stage in zip(trellis.slots, trellis.choices, strict=True):
        ways: dict[Env, list[tuple[Floats, tuple[Env, int]]]] = {}
        for env, choices in stage.items():
            for step in choices:
                cost = values[env] + terms.choice(trellis, slot, step)
                ways.setdefault(step.env, []).append((cost, (env, DIMS.index(step.dim))))
        values, picks = {}, {}
        for env, found in ways.items():
            costs = np.stack([cost for cost, _ in found])
            pick = costs.argmin(axis=0)
            values[env] = np.take_along_axis(costs, pick[None], axis=0)[0]
            picks[env] = (pick, [way for _, way in found])
        back.append(picks)
    return values[trellis.start], _walked_back(trellis, back, n)


def _walked_back(
    trellis: Trellis, back: list[dict[Env, tuple[Ints, list[tuple[Env, int]]]]], n: int
) -> Codes:
    codes = np.zeros((len(back), n), dtype=np.int8)
    rows: dict[Env, Ints] = {trellis.start: np.arange(n)}
    for index in reversed(range(len(back))):
        before: dict[Env, list[Ints]] = {}
        for env, here in rows.items():
            pick, ways = back[index][env]
            for position, (came_from, code) in enumerate(ways):
                chosen = here[pick[here] == position]
                codes[index, chosen] = code
                before.setdefault(came_from, []).append(chosen)
        rows = {env: np.concatenate(parts) for env, parts in before.items()}
    return codes
