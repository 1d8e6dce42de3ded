from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.errors import InputError
from cluster.model.layout import Dim, Layout, LayoutTable
from cluster.model.rules import check_layouts
from rl_search.enumeration import Space
from rl_search.exact import evaluate
from rl_search.space import ActionSpace
from tests.rl_search import searches

QUESTIONS = [
    ("qwen3-30b-a3b", "2x8xH100", Space.ANY),
    ("qwen3-30b-a3b", "2x8xH100", Space.VLLM),
    ("llama-3.1-70b", "1x8xH200", Space.ANY),
    ("smollm2-135m-instruct", "9xH100", Space.VLLM),
]


@pytest.fixture(params=QUESTIONS, ids=lambda q: f"{q[0]}-{q[2].value}")
def space(request):
    return searches.space_of(*request.param)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(QUESTIONS))
def test_what_is_drawn_keeps_the_masks_the_rules_and_its_code(seed, asked):
    space = searches.space_of(*asked)
    actions = space.sample(np.random.default_rng(seed), 20)
    assert space.contains(actions).all()
    table = space.decode(actions)
    assert (space.encode(table) == actions).all()
    question = space.question
    assert check_layouts(question.model, question.group, table).ok.all()
    for head, allowed in enumerate(space.masks(actions)):
        assert allowed[np.arange(20), actions[:, head]].all()
        assert (allowed <= space.anywhere[head]).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(QUESTIONS))
def test_repairing_gives_a_strategy_and_leaves_one_alone(seed, asked):
    space, rng = searches.space_of(*asked), np.random.default_rng(seed)
    wild = np.stack([rng.integers(0, size, 30) for size in space.sizes], axis=1)
    repaired = space.repaired(wild)
    assert space.contains(repaired).all()
    assert (space.repaired(repaired) == repaired).all()


def test_everything_the_exact_search_accepts_is_in_the_space(space):
    found = evaluate(space.question)
    accepted = found.table.take(np.flatnonzero(found.ok))
    assert len(accepted)
    actions = space.encode(accepted)
    assert space.contains(actions).all()
    assert len(np.unique(actions, axis=0)) == len(actions)


def test_the_size_counts_what_the_masks_let_through():
    space = searches.space_of("smollm2-135m-instruct", "9xH100", Space.VLLM)

    def count(head: int, state: int) -> int:
        if head == len(space.heads):
            return 1
        return sum(
            count(head + 1, int(space.step[head][state, value]))
            for value in np.flatnonzero(space.allow[head][state]).tolist()
        )

    assert space.size == count(0, 0)
    assert 0 < space.size < space.grid


def test_a_tensor_parallel_group_stays_in_its_domain_unless_asked():
    space = searches.space_of("llama-3.1-70b", "2x8xH100", Space.VLLM)
    assert max(space.heads[0].values) == 8


def test_dims_without_ranks_to_cut_over_are_no_choice(space):
    if len(space.heads) == 6:
        pytest.skip("a space without dims")
    actions = space.sample(np.random.default_rng(0), 300)
    whole = space.decode(actions).tp == 1
    assert whole.any()
    assert (actions[whole, 6:] == actions[whole, 6:][0]).all()
    free = space.masks(actions)
    assert all((mask[whole].sum(axis=1) == 1).all() for mask in free[6:])


def test_a_wrong_prefix_loses_the_masks_after_it_and_the_strategy():
    space = searches.space_of()
    actions = space.sample(np.random.default_rng(0), 1)
    wrong = actions.copy()
    wrong[0, 1] = len(space.heads[1].values) - 1  # as many data-parallel ranks as there are
    wrong[0, 0] = len(space.heads[0].values) - 1
    assert not space.contains(wrong).any()
    assert space.masks(wrong)[3].all()
    assert len(space.decode(wrong)) == 1  # it can still be told how far off it is


def test_layouts_from_elsewhere_are_refused_by_name():
    space = searches.space_of()
    with pytest.raises(InputError, match=r"tp = 3 is not in the space, only 1, 2, 4.*Fix"):
        space.encode(LayoutTable.from_layouts([Layout(tp=3, moe_tp=3)]))
    plain = searches.space_of("qwen3-30b-a3b", "2x8xH100", Space.VLLM)
    cut = Layout(tp=2, moe_tp=2, dims=(("residual", Dim.ROW),))
    with pytest.raises(InputError, match=r"cuts operators one by one.*`any` space"):
        plain.encode(LayoutTable.from_layouts([cut]))


def test_held_heads_take_the_least_there_is():
    space = searches.space_of()
    held = space.frozen(["dp", "pp", "ep"])
    table = held.decode(held.sample(np.random.default_rng(1), 50))
    assert space.contains(held.sample(np.random.default_rng(1), 50)).all()
    assert set(table.dp.tolist()) == set(table.pp.tolist()) == set(table.moe_ep.tolist()) == {1}
    assert len(set(table.tp.tolist())) > 1
    assert held.size < space.size


def test_a_model_that_fits_nowhere_has_no_strategies():
    space = searches.space_of("deepseek-v3", "1x8xA100-40", Space.VLLM)
    assert space.size == 0
    assert isinstance(space, ActionSpace)
    assert "0 under the masks" in space.described()
