"""Does what article A saw in its learned strategies show in ours? Three patterns and a claim.

    ffn       FFN1 along dim 1 with FFN2 along dim 0: an all-gather more, 30 % less all-reduce
    experts   once EP >= 4, more EP rather than more TP
    context   16k tokens of context: a smaller batch and more pipeline stages
    compute   TP >= 8: under 60 % of compute units used with all-reduce, over 85 % with all-gather

Everything is read off an exact search (`exact.evaluate`), in which every layout stands at the best
that its batch, chunk and dims come to. The cost model knows no utilisation of compute units; the
share of kernels in the time of kernels and exchanges stands for it, which utilisation is below.

Invariant: a verdict is None where nothing feasible could tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from cluster.costmodel.sharded_steps import sharded_parts
from cluster.costmodel.sharding_states import Collective, Exchange, Experts
from cluster.costmodel.steps import Parts
from cluster.model import operators as op
from cluster.model.layout import Dim, Layout, LayoutTable
from cluster.model.model_spec import ModelSpec
from rl_search.best_strategies import Strategies
from rl_search.dims_gains import experts_of
from rl_search.evaluator import estimate_own
from rl_search.exact import Evaluated, ranked
from rl_search.question import Priority, Question
from rl_search.words import OperatorLine, Traffic, activation_bytes, describe_dims, traffic

Floats = NDArray[np.float64]

EP_FROM = 4
TP_FROM = 8
BUSY_BEFORE, BUSY_AFTER = 0.60, 0.85  # utilisation with all-reduce, and with all-gather

_PAIRS = (
    (op.FFN_UP, op.FFN_DOWN),
    (op.EXPERT_UP, op.EXPERT_DOWN),
    (op.SHARED_UP, op.SHARED_DOWN),
)
_FFN = frozenset({op.ROUTER, *(name for pair in _PAIRS for name in pair)})
_KERNELS = ("projections", "attention", "ffn", "experts", "head", "small_kernels", "elementwise")
_EXCHANGES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One claim of the article, and whether it holds here; None: it cannot be told."""

    name: str
    claim: str
    ours: bool | None
    numbers: Mapping[str, float]
    sentence: str


def findings(
    long: Evaluated, short: Evaluated, priority: Priority, *, layout: Layout | None = None
) -> tuple[Finding, ...]:
    """All four. `layout`: the one whose dims are looked at, the best of `long` if None.

    `short` answers the question of `long` at a shorter context (`at_context`).
    """
    best = ranked(long, priority, top=1)
    if layout is None and best:
        layout = long.table.row(best[0])
    return (
        asymmetric_ffn(
            long.question.model, layout, width=activation_bytes(long.question.group.device)
        ),
        experts_first(long, priority),
        smaller_and_deeper(long, short, priority),
        compute_share(long, priority),
    )


def at_context(question: Question, *, isl: int, osl: int) -> Question:
    """The same question of other lengths, each sequence no longer than these need."""
    workload = replace(question.workload, isl=isl, osl=osl)
    return replace(question, workload=workload, max_model_len=isl + osl)


def asymmetric_ffn(model: ModelSpec, layout: Layout | None, *, width: float = 2.0) -> Finding:
    """Whether feed-forward pairs are cut as in the article's first pattern, with its effect.

    It can be read in two ways. Dims of weights make it Megatron's own column-then-row scheme, as
    the article's section 1 says, which needs no all-gather. Dims of output tensors (so section 1
    defines them) cut FFN2's output by tokens: that takes a reduce-scatter, and an all-gather before
    the next operator. Only this one can do what section 4.2 says it does.
    """
    claim = (
        "FFN1 along dim 1 with FFN2 along dim 0 needs an extra all-gather and saves 30 % of "
        "all-reduce traffic (section 4.2; section 1 calls the same dims the static scheme)"
    )
    lines = () if layout is None else describe_dims(model, layout)
    if layout is None or not lines:
        why = "No layout is feasible." if layout is None else "TP1 cuts no operator."
        return Finding(name="ffn", claim=claim, ours=None, numbers={}, sentence=why)
    block = [line for line in lines if line.operator in _FFN]
    pairs = list(_pairs(block, own_grid=experts_of(model, layout) is not Experts.CUT))
    numbers = {
        "pairs": float(len(pairs)),
        "pairs_dim1_dim0": float(sum(pair == (Dim.COLUMN, Dim.ROW) for pair in pairs)),
        "stream_cut_by_tokens": float(lines[-1].differs),
        **_told("ffn", _moved(model, layout, block, width=width)),
        **_told("all", _moved(model, layout, lines, width=width)),
    }
    alike = numbers["pairs_dim1_dim0"] == numbers["pairs"] > 0
    gathers = numbers["ffn_all_gathers"] > numbers["ffn_megatron_all_gathers"]
    fewer = numbers["ffn_all_reduce_bytes"] < numbers["ffn_megatron_all_reduce_bytes"]
    return Finding(
        name="ffn",
        claim=claim,
        ours=alike and gathers and fewer,
        numbers=numbers,
        sentence=_ffn_said(numbers, _gathering(lines)),
    )


def experts_first(evaluated: Evaluated, priority: Priority) -> Finding:
    """Whether more expert parallelism beats more tensor parallelism from EP4 on.

    Twice: is moe_ep above moe_tp in the best layout of each size of replica that spreads experts
    over 4 ranks or more; and of two layouts that double one or the other, which is faster? Both
    grids are doubled (the article's TP and EP), or that of experts alone.
    """
    claim = "from EP4 on, more EP comes before more TP: routing tokens is lighter than all-reduce"
    found = Strategies.of(evaluated, priority)
    spread = found.take(np.flatnonzero(found.table.moe_ep >= EP_FROM))
    if not len(spread.value):
        sentence = f"No feasible layout spreads experts over {EP_FROM} ranks or more."
        return Finding(name="experts", claim=claim, ours=None, numbers={}, sentence=sentence)
    # Best first, so that the first of each size is the best of it.
    _, firsts = np.unique(spread.table.devices_per_replica, return_index=True)
    over = int((spread.table.moe_ep[firsts] > spread.table.moe_tp[firsts]).sum())
    both, grid = (
        list(found.doubled_both(ep_from=EP_FROM)),
        list(found.doubled_grid(ep_from=EP_FROM)),
    )
    told = [pairs for pairs in (both, grid) if pairs]
    agree = all(2 * sum(ratio > 1.0 for ratio in pairs) > len(pairs) for pairs in told)
    best, of_all = spread.table.row(0), found.table.row(0)
    numbers = {
        "layouts": float(len(spread.value)),
        "sizes": float(len(firsts)),
        "sizes_ep_over_tp": float(over),
        "best_moe_ep": float(best.moe_ep),
        "best_moe_tp": float(best.moe_tp),
        "best_of_all_moe_ep": float(of_all.moe_ep),
        "best_of_all_moe_tp": float(of_all.moe_tp),
        **_pairs_told("pairs", both),
        **_pairs_told("expert_pairs", grid),
    }
    return Finding(
        name="experts",
        claim=claim,
        ours=over == len(firsts) and agree,
        numbers=numbers,
        sentence=(
            f"Of {len(spread.value)} feasible layouts with EP{EP_FROM} or more the best has "
            f"experts TP{best.moe_tp} x EP{best.moe_ep}; EP is above TP in the best of {over} of "
            f"{len(firsts)} sizes of replica; the best of all has experts TP{of_all.moe_tp} x "
            f"EP{of_all.moe_ep}. Doubling EP against doubling TP: {_pairs_said(both)}; in the "
            f"experts' grid alone: {_pairs_said(grid)}."
        ),
    )


def smaller_and_deeper(long: Evaluated, short: Evaluated, priority: Priority) -> Finding:
    """Whether the best layout at the longer context has a smaller batch and more stages."""
    claim = "at 16k context the batch is smaller and the pipeline deeper"
    best = [ranked(each, priority, top=1) for each in (long, short)]
    lengths = [each.question.workload for each in (long, short)]
    if not all(best):
        which = lengths[0] if not best[0] else lengths[1]
        sentence = f"No layout is feasible at {which.isl} tokens in and {which.osl} out."
        return Finding(name="context", claim=claim, ours=None, numbers={}, sentence=sentence)
    here, there = (
        each.table.row(index[0]) for each, index in zip((long, short), best, strict=True)
    )
    numbers: dict[str, float] = {}
    for key, layout in (("long", here), ("short", there)):
        numbers |= {
            f"{key}_batch": layout.max_num_seqs,
            f"{key}_batch_per_device": layout.max_num_seqs / layout.devices_per_replica,
            f"{key}_pp": layout.pp,
            f"{key}_devices": layout.devices_per_replica,
        }
    smaller, deeper = here.max_num_seqs < there.max_num_seqs, here.pp > there.pp
    said = [
        f"at {lengths[i].isl:,} tokens in and {lengths[i].osl:,} out {layout.describe()} with a "
        f"batch of {layout.max_num_seqs} ({layout.max_num_seqs / layout.devices_per_replica:.3g} a "
        f"device) and {layout.pp} pipeline stage(s)"
        for i, layout in enumerate((here, there))
    ]
    return Finding(
        name="context",
        claim=claim,
        ours=smaller and deeper,
        numbers=numbers,
        sentence=(
            f"Best under the same bounds: {said[0]}; {said[1]}. The batch is "
            f"{'smaller' if smaller else 'not smaller'}, the pipeline "
            f"{'deeper' if deeper else 'no deeper'} at the longer one."
        ),
    )


def compute_share(evaluated: Evaluated, priority: Priority) -> Finding:
    """What share of a step kernels have at TP8 and more, under Megatron's dims and the best ones.

    Of each degree, the best layout, and the one in which Megatron's all-reduces take most. The
    verdict is on the best, in whichever kind of step has less for kernels.
    """
    claim = (
        f"at TP{TP_FROM} and more, all-reduces leave compute units below {BUSY_BEFORE:.0%} of use, "
        f"all-gathers in their place bring above {BUSY_AFTER:.0%}"
    )
    found = Strategies.of(evaluated, priority)
    numbers: dict[str, float] = {}
    said, verdicts = [], []
    for tp in sorted({int(tp) for tp in found.table.tp if tp >= TP_FROM}):
        table = found.table.take(found.table.tp == tp)
        own, before = (
            _Shares.of(evaluated.question, each)
            for each in (table, replace(table, dims=None, assignments=((),)))
        )
        most = int(np.argmax(before.all_reduce_mixed))
        for which, row in (("best", 0), ("most", most)):
            numbers |= own.told(f"tp{tp}_{which}", row)
            numbers |= before.told(f"tp{tp}_{which}_megatron", row)
        said += [
            f"TP{tp}, best layout ({table.row(0).describe()}): {_shares_said(own, before, 0)}",
            f"of {len(table)} layouts the one in which all-reduces take most "
            f"({table.row(most).describe()}): {_shares_said(own, before, most)}",
        ]
        if table.row(0).dims:
            verdicts.append(before.least(0) < BUSY_BEFORE and own.least(0) > BUSY_AFTER)
    if not said:
        said = [f"No feasible layout has TP{TP_FROM} or more"]
    return Finding(
        name="compute",
        claim=claim,
        # Where the best layout is cut as Megatron cuts it, nothing stands in an all-reduce's place.
        ours=all(verdicts) if verdicts else None,
        numbers=numbers,
        sentence=f"{'; '.join(said)}.",
    )


def _pairs(lines: Sequence[OperatorLine], *, own_grid: bool) -> Iterator[tuple[Dim, Dim]]:
    """The dims of every feed-forward pair of every layer kind that has a choice of dims.

    Routed experts have none where their cut follows from a grid of their own.
    """
    dims = {(line.kind, line.operator): line.dim for line in lines}
    for kind in dict.fromkeys(line.kind for line in lines):
        for up, down in _PAIRS:
            chosen = (kind, up) in dims and not (own_grid and up == op.EXPERT_UP)
            if chosen:
                yield dims[kind, up], dims[kind, down]


def _gathering(lines: Sequence[OperatorLine]) -> list[str]:
    """Operators that meet more all-gathers than under Megatron's dims."""

    def gathers(exchanges: Sequence[Exchange]) -> int:
        return sum(exchange.collective is Collective.ALL_GATHER for exchange in exchanges)

    more = (line for line in lines if gathers(line.exchanges) > gathers(line.megatron_exchanges))
    return list(dict.fromkeys(line.operator for line in more))


def _moved(
    model: ModelSpec, layout: Layout, lines: Sequence[OperatorLine], *, width: float
) -> tuple[Traffic, Traffic]:
    """Collectives of a pass through all layers: under the layout's dims, and Megatron's."""
    own = [(exchange, line.layers) for line in lines for exchange in line.exchanges]
    before = [(exchange, line.layers) for line in lines for exchange in line.megatron_exchanges]
    return (
        traffic(own, model, tp=layout.tp, width=width),
        traffic(before, model, tp=layout.tp, width=width),
    )


def _told(blocks: str, moved: tuple[Traffic, Traffic]) -> dict[str, float]:
    told: dict[str, float] = {}
    for scheme, made in zip(("", "megatron_"), moved, strict=True):
        told |= {
            f"{blocks}_{scheme}all_gathers": float(made.counts[Collective.ALL_GATHER]),
            f"{blocks}_{scheme}all_reduce_bytes": made.bytes_[Collective.ALL_REDUCE],
            f"{blocks}_{scheme}bytes": made.total,
        }
    return told


def _ffn_said(numbers: Mapping[str, float], gathering: Sequence[str]) -> str:
    def against(blocks: str, name: str) -> str:
        own, before = (numbers[f"{blocks}_{scheme}{name}"] for scheme in ("", "megatron_"))
        change = f" ({own / before - 1.0:+.0%})" if before else ""
        return f"{own:,.0f} bytes instead of {before:,.0f}{change}"

    said = [
        "As dims of weights this is Megatron's own column-then-row scheme, without an all-gather: "
        f"so are {numbers['pairs_dim1_dim0']:.0f} of {numbers['pairs']:.0f} feed-forward pairs cut",
        "as dims of outputs it cuts FFN2's output by tokens, for a reduce-scatter and an "
        f"all-gather: {'so it is here' if numbers['stream_cut_by_tokens'] else 'not so here'}",
    ]
    said += [
        f"in {where} a tensor-parallel rank sends {against(blocks, 'all_reduce_bytes')} a token "
        f"in all-reduces, {against(blocks, 'bytes')} in all collectives"
        for blocks, where in (("ffn", "feed-forward blocks"), ("all", "all blocks"))
    ]
    if gathering:
        said.append(f"all-gathers that Megatron's dims do without are at {', '.join(gathering)}")
    return f"{'; '.join(said)}."


def _pairs_told(name: str, ratios: Sequence[float]) -> dict[str, float]:
    told = {name: float(len(ratios)), f"{name}_ep_wins": float(sum(r > 1.0 for r in ratios))}
    if ratios:
        told[f"{name}_ep_gain"] = median(ratios) - 1.0
    return told


def _pairs_said(ratios: Sequence[float]) -> str:
    if not ratios:
        return "no two feasible layouts differ so"
    wins = sum(ratio > 1.0 for ratio in ratios)
    return f"EP wins {wins} of {len(ratios)} pairs, median {median(ratios) - 1.0:+.1%}"


@dataclass(frozen=True, kw_only=True)
class _Shares:
    """Of the time of kernels and exchanges: what kernels have, and what all-reduces have, (n,)."""

    decode: Floats
    mixed: Floats
    all_reduce_decode: Floats
    all_reduce_mixed: Floats

    @classmethod
    def of(cls, question: Question, table: LayoutTable) -> _Shares:
        """In a step without and in one with prompts, at the operating points of the rows."""
        setting, made = question.setting(), estimate_own(question, table)
        steps = setting.steps(table, made)
        case, loads = steps.case, steps.loads
        decode, mixed = (
            sharded_parts(case, setting.sharding(table), load, setting.coefficients)
            for load in loads
        )
        return cls(
            decode=_share(decode, _KERNELS),
            mixed=_share(mixed, _KERNELS),
            all_reduce_decode=_share(decode, ("all_reduce",)),
            all_reduce_mixed=_share(mixed, ("all_reduce",)),
        )

    def least(self, row: int) -> float:
        """What kernels have in the step that leaves them less."""
        return float(min(self.decode[row], self.mixed[row]))

    def told(self, name: str, row: int) -> dict[str, float]:
        """As numbers."""
        return {
            f"{name}_{each.name}": float(getattr(self, each.name)[row]) for each in fields(self)
        }


def _shares_said(own: _Shares, before: _Shares, row: int) -> str:
    return (
        f"kernels have {before.decode[row]:.1%} of a decode step and {before.mixed[row]:.1%} of "
        f"one with prompts under Megatron's dims (all-reduces {before.all_reduce_decode[row]:.1%} "
        f"and {before.all_reduce_mixed[row]:.1%}), {own.decode[row]:.1%} and {own.mixed[row]:.1%} "
        "under the best dims"
    )


def _share(parts: Parts, names: Sequence[str]) -> Floats:
    """What some parts have of the time of kernels and exchanges."""
    own = np.sum([parts[name] for name in names], axis=0)
    return np.asarray(own / np.sum([parts[name] for name in _KERNELS + _EXCHANGES], axis=0))
