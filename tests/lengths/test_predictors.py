from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.lengths.features import (
    OPENINGS_TOKENS,
    LengthFeatures,
    openings_of_blocks,
)
from cluster.lengths.formula import Formula
from cluster.lengths.learned import Learned
from cluster.lengths.predictors import PREDICTORS
from cluster.prefix_index import BLOCK_TOKENS, block_chain


def openings_of(tokens):
    return openings_of_blocks(block_chain(tokens), BLOCK_TOKENS)


def asked(prompt=500, *, limit=None, room=100_000, least=0, source="", openings=()):
    return LengthFeatures(prompt, limit, room, least, source, openings)


def taught(pairs, *, usual=256.0):
    predictor = Learned(usual)
    for one, tokens in pairs:
        predictor.learn(one, tokens)
    return predictor


@st.composite
def requests(draw):
    limit = draw(st.none() | st.integers(0, 5_000))
    room = draw(st.integers(1, 5_000))
    most = room if limit is None else min(limit, room)
    return LengthFeatures(
        prompt_tokens=draw(st.integers(0, 200_000)),
        limit=limit,
        room=room,
        least=draw(st.just(0) | st.integers(0, most)),
        source=draw(st.sampled_from(["", "team/chat"])),
        openings=tuple(draw(st.lists(st.integers(0, 3), max_size=3))),
    )


@st.composite
def answers(draw):
    one = draw(requests())
    return one, draw(st.integers(one.least, one.most))


@pytest.mark.parametrize("name", PREDICTORS)
@given(usual=st.integers(0, 10_000), seen=st.lists(answers(), max_size=30), one=requests())
def test_a_prediction_is_never_negative_nor_more_than_there_can_be(name, usual, seen, one):
    predictor = PREDICTORS[name](usual)
    for past, tokens in seen:
        predictor.learn(past, tokens)
    assert 0.0 <= predictor.predict(one) <= one.most


@given(usual=st.integers(0, 10_000), one=requests())
def test_what_must_be_generated_is_predicted(usual, one):
    assert Learned(usual).predict(one) >= one.least


@given(seen=st.lists(answers(), max_size=60))
def test_memory_is_bounded(seen):
    predictor = Learned(256.0, most_contexts=12)
    for one, tokens in seen:
        predictor.learn(one, tokens)
        assert len(predictor) <= 12


def test_contexts_in_use_outlive_those_that_are_not():
    predictor = Learned(256.0, most_contexts=40)
    for number in range(200):
        predictor.learn(asked(openings=(1,)), 7)
        predictor.learn(asked(prompt=2**17, openings=(1000 + number,)), 900)
    assert predictor.predict(asked(openings=(1,))) < 20


@given(tokens=st.integers(1, 5_000), usual=st.integers(0, 5_000), one=requests())
def test_equal_answers_are_soon_predicted(tokens, usual, one):
    one = one._replace(least=0, limit=None, room=10_000)
    predictor = taught([(one, tokens)] * 100, usual=usual)
    assert predictor.predict(one) == pytest.approx(tokens, rel=0.05)


@pytest.mark.parametrize("later", [40, 1_600])
def test_a_shift_is_followed(later):
    predictor = taught([(asked(), 400)] * 1_000 + [(asked(), later)] * 500)
    assert predictor.predict(asked()) == pytest.approx(later, rel=0.15)


def test_a_shift_of_all_reaches_what_is_seldom_seen():
    prompts = [round(2 ** (number / 8)) for number in range(40, 120)]
    before = [(asked(prompt), 100) for prompt in prompts] * 20
    after = [(asked(prompt), 300) for prompt in prompts[1:]] * 2
    assert taught(before).predict(asked(prompts[0])) == pytest.approx(100, rel=0.01)
    assert taught(before + after).predict(asked(prompts[0])) > 125


def test_prompts_of_other_lengths_have_answers_of_their_own():
    predictor = taught([(asked(300), 90), (asked(1_500), 400)] * 100)
    assert predictor.predict(asked(300)) == pytest.approx(90, rel=0.1)
    assert predictor.predict(asked(1_500)) == pytest.approx(400, rel=0.1)


def test_applications_are_told_apart_by_how_their_prompts_begin():
    one, other = asked(openings=(1,)), asked(openings=(2,))
    predictor = taught([(one, 20), (other, 800)] * 100)
    assert predictor.predict(one) == pytest.approx(20, rel=0.2)
    assert predictor.predict(other) == pytest.approx(800, rel=0.2)


def test_a_request_like_none_before_gets_what_is_usual_in_the_pool():
    predictor = taught([(asked(), 50)] * 300)
    assert predictor.predict(asked(100_000, source="new")) == pytest.approx(50, rel=0.1)


def test_answers_cut_short_do_not_shorten_what_is_expected_without_a_limit():
    free, cut = asked(source="a"), asked(source="a", limit=16)
    predictor = taught([(free, 300), *[(cut, 16)] * 9] * 100)
    assert predictor.predict(free) == pytest.approx(300, rel=0.1)
    assert predictor.predict(cut) == pytest.approx(16, rel=0.01)


def test_a_generous_limit_is_not_believed():
    predictor = taught([(asked(limit=4_096), 100)] * 50)
    assert predictor.predict(asked(limit=4_096)) == pytest.approx(100, rel=0.1)
    assert Formula(256).predict(asked(limit=4_096)) == 4_096


def test_a_dictated_length_teaches_nothing():
    dictated = asked(limit=900, least=900)
    predictor = taught([(dictated, 900)] * 50, usual=100.0)
    assert predictor.predict(dictated) == 900
    assert predictor.predict(asked()) == 100


def test_the_formula_takes_the_limit_or_what_is_usual():
    formula = Formula(256)
    assert formula.predict(asked()) == 256
    assert formula.predict(asked(room=100)) == 100
    assert formula.predict(asked(limit=10)) == 10


def test_openings_are_those_the_prompt_is_long_enough_for():
    first, second = list(range(2_000)), [*range(300), *([7] * 1_700)]
    ours, theirs = openings_of(first), openings_of(second)
    assert len(ours) == len(OPENINGS_TOKENS)
    assert ours[:2] == theirs[:2]
    assert ours[2] != theirs[2]
    assert openings_of(first[:63]) == ()
    assert openings_of(first[:64]) == ours[:1]


def test_blocks_tell_the_openings_that_end_with_one():
    assert openings_of_blocks(range(10, 74), 16) == (13, 25, 73)
    assert openings_of_blocks((5, 6, 7), 512) == (6,)
    assert openings_of_blocks((5,), 512) == ()
    assert openings_of_blocks((), 0) == ()
