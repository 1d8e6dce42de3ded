from __future__ import annotations

import pytest

from cluster.errors import InputError
from serving.layout.succession import context, successor
from tests.serving.plans import plan


def test_layout_batch_and_replicas_may_change() -> None:
    wanted = plan(tp=2, initial=2, maximum=3, max_num_seqs=7)
    assert successor(plan(), wanted) == wanted


def test_the_light_pool_stays_as_it_runs() -> None:
    light = plan(name="light").main.model_copy(update={"name": "light"})
    running = plan().model_copy(update={"pools": (plan().main, light)})
    assert successor(running, plan(tp=2)).light == light
    another = light.model_copy(update={"engine_args": {"max_num_seqs": 1}})
    wanted = plan(tp=2).model_copy(update={"pools": (plan(tp=2).main, another)})
    with pytest.raises(InputError, match="changes the light pool"):
        successor(running, wanted)


def test_the_context_may_grow_and_not_shrink() -> None:
    assert context(successor(plan(), plan(tp=2, max_model_len=2048)).main) == 2048
    with pytest.raises(InputError, match="a context of 512 tokens, callers are promised 1024"):
        successor(plan(), plan(tp=2, max_model_len=512))


@pytest.mark.parametrize("name", ["runner", "reasoning_parser", "scheduling_policy"])
def test_what_gateways_go_by_may_not_change(name: str) -> None:
    with pytest.raises(InputError, match=f"engine argument {name} is 'other'"):
        successor(plan(), plan(tp=2, **{name: "other"}))


def test_another_model_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="for model 'another', what runs is 'model'"):
        successor(plan(), plan(tp=2, name="another"))


def test_what_would_change_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="nothing would"):
        successor(plan(), plan())


def test_a_layout_that_is_not_served_here_is_refused() -> None:
    main = plan().main
    layout = main.layout.model_copy(update={"dp": 2})
    wanted = plan().model_copy(update={"pools": (main.model_copy(update={"layout": layout}),)})
    with pytest.raises(InputError, match="dp = 2"):
        successor(plan(), wanted)


def test_a_layout_of_which_no_replica_starts_is_refused_before_anything_moves() -> None:
    running = plan(name="smollm2-135m-instruct")
    assert successor(running, plan(name="smollm2-135m-instruct", tp=3)).main.layout.tp == 3
    with pytest.raises(InputError, match="9 attention heads do not split over tp = 2"):
        successor(running, plan(name="smollm2-135m-instruct", tp=2))
