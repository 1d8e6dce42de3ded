"""Verdicts on the article's patterns follow from the exact search they are read off."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cluster.costmodel.sharding import RESIDUAL
from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.layout import Dim, Layout
from cluster.model.workload import Slo, Workload
from rl_search.best_strategies import Strategies
from rl_search.enumeration import Space, SpaceOptions
from rl_search.exact import Evaluated, evaluate, ranked
from rl_search.patterns import (
    asymmetric_ffn,
    at_context,
    compute_share,
    experts_first,
    findings,
    smaller_and_deeper,
)
from rl_search.question import Priority, Question, score

DENSE, MOE = get_model("llama-3.1-8b"), get_model("qwen3-30b-a3b")
BY = Priority.THROUGHPUT


def question(**changes) -> Question:
    base = Question(
        model=MOE,
        group=parse_cluster("2x8xH100").groups[0],
        workload=Workload(isl=15_360, osl=1024),
        slo=Slo(tpot_s=0.1),
        options=SpaceOptions(space=Space.ANY, batches=(16, 64, 256), chunks=(512, 2048)),
        headroom=0.2,
        max_model_len=16_384,
    )
    return replace(base, **changes)


@pytest.fixture(scope="module")
def long() -> Evaluated:
    return evaluate(question())


@pytest.fixture(scope="module")
def short() -> Evaluated:
    return evaluate(at_context(question(), isl=2048, osl=1024))


@pytest.fixture(scope="module")
def impossible() -> Evaluated:
    return evaluate(question(slo=Slo(tpot_s=1e-6)))


def test_a_question_at_another_context_differs_in_lengths_only():
    other = at_context(question(), isl=2048, osl=1024)
    assert (other.workload.isl, other.workload.osl, other.max_model_len) == (2048, 1024, 3072)
    assert replace(other, workload=question().workload, max_model_len=16_384) == question()


def test_strategies_are_the_feasible_degrees_at_their_best(long):
    found, values = Strategies.of(long, BY), score(long.estimates, BY)
    assert found.index[0] == ranked(long, BY, top=1)[0]
    assert list(found.value) == sorted(found.value, reverse=True)
    names = ("tp", "dp", "pp", "moe_tp", "moe_ep")
    every = np.stack([getattr(long.table, name) for name in names], axis=1)
    assert len(found.value) == len(np.unique(every[long.ok], axis=0))
    for row, value in zip(found.index, found.value, strict=True):
        alike = long.ok & (every == every[row]).all(axis=1)
        assert value == values[alike].max()


def test_doubling_compares_layouts_on_equal_devices(long):
    found = Strategies.of(long, BY)
    values = {
        (row.tp, row.dp, row.pp, row.moe_tp, row.moe_ep): value
        for row, value in ((found.table.row(i), v) for i, v in enumerate(found.value))
    }
    grid = [
        values[tp, dp, pp, t, 2 * e] / values[tp, dp, pp, 2 * t, e]
        for tp, dp, pp in {key[:3] for key in values}
        for t in (1, 2, 4, 8)
        for e in (4, 8, 16)
        if {(tp, dp, pp, t, 2 * e), (tp, dp, pp, 2 * t, e)} <= values.keys()
    ]
    both = [
        values[t, 2 * e, pp, t, 2 * e] / values[2 * t, e, pp, 2 * t, e]
        for pp in (1, 2, 4)
        for t in (1, 2, 4)
        for e in (4, 8)
        if {(t, 2 * e, pp, t, 2 * e), (2 * t, e, pp, 2 * t, e)} <= values.keys()
    ]
    assert grid
    assert both
    assert sorted(found.doubled_grid(ep_from=4)) == pytest.approx(sorted(grid))
    assert sorted(found.doubled_both(ep_from=4)) == pytest.approx(sorted(both))


def test_all_four_claims_get_a_verdict_with_figures(long, short):
    found = findings(long, short, BY)
    assert [finding.name for finding in found] == ["ffn", "experts", "context", "compute"]
    for finding in found:
        assert finding.claim
        assert finding.sentence.endswith(".")
        assert all(math.isfinite(number) for number in finding.numbers.values())
    best = long.table.row(ranked(long, BY, top=1)[0])
    assert found[0] == asymmetric_ffn(MOE, best)
    assert findings(long, short, BY, layout=Layout())[0].ours is None


def test_nothing_feasible_tells_nothing(impossible, short):
    found = findings(impossible, short, BY)
    assert [finding.ours for finding in found] == [None] * 4
    assert all(not finding.numbers for finding in found)


MEGATRON = Layout(tp=8, moe_tp=8)


def test_the_asymmetric_pair_is_megatrons_unless_outputs_are_meant():
    plain = asymmetric_ffn(DENSE, MEGATRON)
    assert plain.ours is False
    assert plain.numbers["pairs_dim1_dim0"] == plain.numbers["pairs"] == 1.0
    assert plain.numbers["ffn_all_gathers"] == 0.0
    assert "not so here" in plain.sentence
    cut = asymmetric_ffn(DENSE, replace(MEGATRON, dims=((RESIDUAL, Dim.ROW),)))
    assert cut.ours is True
    assert cut.numbers["ffn_all_gathers"] == DENSE.num_layers
    assert cut.numbers["ffn_all_reduce_bytes"] == 0.0
    assert cut.numbers["ffn_bytes"] == cut.numbers["ffn_megatron_bytes"]
    assert "so it is here" in cut.sentence
    assert "ffn_up" in cut.sentence


def test_an_all_gather_elsewhere_is_not_taken_for_the_pattern():
    found = asymmetric_ffn(DENSE, replace(MEGATRON, dims=(("attention_out", Dim.COLUMN),)))
    assert found.ours is False
    assert found.numbers["all_all_gathers"] == 2.0 * DENSE.num_layers
    assert found.sentence.endswith("Megatron's dims do without are at attention_out.")


def test_a_pair_cut_otherwise_is_not_the_pattern():
    dims = (("ffn_down", Dim.COLUMN), (RESIDUAL, Dim.ROW))
    found = asymmetric_ffn(DENSE, replace(MEGATRON, dims=dims))
    assert found.ours is False
    assert found.numbers["pairs_dim1_dim0"] == 0.0


def test_experts_with_a_grid_of_their_own_are_no_pair():
    assert asymmetric_ffn(MOE, MEGATRON).numbers["pairs"] == 1.0
    assert asymmetric_ffn(MOE, Layout(tp=8, moe_tp=2, moe_ep=4)).numbers["pairs"] == 0.0


def test_experts_first_counts_the_best_of_each_size(long):
    found = experts_first(long, BY)
    names = ("tp", "dp", "pp", "moe_tp", "moe_ep")
    spread = np.flatnonzero(long.ok & (long.table.moe_ep >= 4))
    values, devices = score(long.estimates, BY), long.table.devices_per_replica
    bests = [
        max(spread[devices[spread] == size], key=lambda row: values[row])
        for size in np.unique(devices[spread])
    ]
    over = sum(long.table.moe_ep[row] > long.table.moe_tp[row] for row in bests)
    assert found.numbers["sizes"] == len(bests)
    assert found.numbers["sizes_ep_over_tp"] == over
    every = np.stack([getattr(long.table, name)[spread] for name in names], axis=1)
    assert found.numbers["layouts"] == len(np.unique(every, axis=0))
    assert found.ours is not None


def test_a_model_without_experts_has_none_to_spread():
    dense = evaluate(question(model=DENSE))
    assert dense.ok.any()
    assert experts_first(dense, BY).ours is None


def test_contexts_are_compared_by_batch_and_stages(long, short):
    found = smaller_and_deeper(long, short, BY)
    here, there = (each.table.row(ranked(each, BY, top=1)[0]) for each in (long, short))
    assert found.numbers["long_batch"] == here.max_num_seqs
    assert found.numbers["short_pp"] == there.pp
    assert found.ours is (here.max_num_seqs < there.max_num_seqs and here.pp > there.pp)
    assert smaller_and_deeper(long, long, BY).ours is False


def test_shares_of_kernels_grow_where_exchanges_shrink(long):
    found = compute_share(long, BY)
    assert {key.split("_")[0] for key in found.numbers} == {"tp8"}
    assert all(0.0 <= share <= 1.0 for share in found.numbers.values())
    if found.ours is not None:
        least = min(found.numbers[f"tp8_best_{step}"] for step in ("decode", "mixed"))
        before = min(found.numbers[f"tp8_best_megatron_{step}"] for step in ("decode", "mixed"))
        assert found.ours is (before < 0.60 and least > 0.85)


def test_tensor_parallelism_across_domains_is_told_beside_that_inside_one():
    asked = question(cross_domain_tp=True, slo=Slo())
    numbers = compute_share(evaluate(asked), BY).numbers
    assert {key.split("_")[0] for key in numbers} == {"tp8", "tp16"}
    # The network is slower than the links of a domain: exchanges take more of a step.
    assert numbers["tp16_most_megatron_mixed"] < numbers["tp8_most_megatron_mixed"]


def test_where_dims_are_no_choice_all_gathers_cannot_be_told():
    options = SpaceOptions(space=Space.VLLM, batches=(16, 64), chunks=(2048,))
    found = compute_share(evaluate(question(options=options)), BY)
    assert found.ours is None
    assert found.numbers["tp8_best_mixed"] == found.numbers["tp8_best_megatron_mixed"]
