"""Where texts are cut, and which of their segments a question is about."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.long_input.relevance import scores
from serving.long_input.segments import last_words, split
from serving.long_input.trim import fair_shares
from serving.long_input.words import Words
from tests.serving.long_prompts import WordModel, filler


def byte_words() -> Words:
    """Each byte is a token, as in a byte-level vocabulary without merges."""
    return Words(
        lambda text: list(text.encode()),
        lambda tokens: bytes(tokens).decode("utf-8", errors="replace"),
    )


@given(st.text(max_size=400), st.integers(8, 40))
def test_segments_are_the_whole_text_in_pieces_of_the_size(text: str, size: int) -> None:
    tokens = byte_words().encode(text)
    spans = split(tokens, size=size, words=byte_words())
    assert [token for start, stop in spans for token in tokens[start:stop]] == list(tokens)
    assert all(stop - start <= size for start, stop in spans)
    assert all(stop - start >= size // 2 for start, stop in spans[:-1])


@given(st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), max_size=100))
def test_no_character_is_cut_in_two(text: str) -> None:
    words = byte_words()
    tokens = words.encode(text)
    parts = [words.decode(tokens[a:b]) for a, b in split(tokens, size=16, words=words)]
    assert "".join(parts) == text


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("a b c d.\n\ne f g", ["a b c d.\n\n", "e f g"]),
        ("a b c\nd e. f g", ["a b c\n", "d e. f g"]),
        ("a b c. d e f g", ["a b c.", " d e f g"]),
        ("a b c d e f g h i", ["a b c d e f", " g h i"]),
    ],
)
def test_paragraphs_come_before_lines_and_lines_before_sentences(
    text: str, segments: list[str]
) -> None:
    model = SpacedModel()
    words = Words(model.tokens, model.decode)
    tokens = words.encode(text)
    assert [words.decode(tokens[a:b]) for a, b in split(tokens, size=6, words=words)] == segments


class SpacedModel(WordModel):
    """Line ends are tokens of their own."""

    def tokens(self, text: str) -> list[int]:
        found: list[int] = []
        for line in text.splitlines(keepends=True):
            found += super().tokens(line.rstrip("\n"))
            if line.endswith("\n"):
                found.append(self._id("\n"))
        return found


@pytest.mark.parametrize(
    ("end", "asked"),
    [
        ("\n\nWhat is the code of it?", "What is the code of it?"),
        ("\n\nWhat is the code of it?\n\nAnswer:", "What is the code of it?\n\nAnswer:"),
        ("\n\nQ: what is it?\nA:", "Q: what is it?\nA:"),
    ],
)
def test_the_question_is_the_last_paragraph_that_could_be_one(end: str, asked: str) -> None:
    model = SpacedModel()
    words = Words(model.tokens, model.decode)
    tokens = words.encode(filler(300) + end)
    start, stop = last_words(tokens, most=100, words=words)
    assert words.decode(tokens[start:stop]).strip() == asked


@given(st.text(max_size=300), st.integers(1, 50))
def test_the_question_is_an_end_of_the_text_within_its_room(text: str, most: int) -> None:
    words = byte_words()
    tokens = words.encode(text)
    start, stop = last_words(tokens, most=most, words=words)
    assert stop == len(tokens)
    assert 0 <= stop - start <= most


def test_scores_are_bm25s() -> None:
    texts: list[Sequence[str]] = [["a", "b", "a"], ["b"], ["c", "d"]]
    found = scores(["a", "x"], texts)
    idf = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    assert found[0] == pytest.approx(idf * 2 * 2.5 / (2 + 1.5 * (1 - 0.75 + 0.75 * 3 / 2)))
    assert found[1:] == [0.0, 0.0]


@given(
    st.lists(st.sampled_from("abc")),
    st.lists(st.lists(st.sampled_from("abcd")), max_size=8),
)
def test_scores_are_at_least_zero_and_zero_without_a_common_term(
    question: list[str], texts: list[list[str]]
) -> None:
    for text, found in zip(texts, scores(question, texts), strict=True):
        assert (found > 0) == bool(set(question) & set(text))


def test_case_spaces_and_punctuation_do_not_matter_and_chinese_does() -> None:
    model = WordModel()
    words = Words(model.tokens, model.decode)
    assert words.terms(model.tokens("Paris , PARIS paris ?")) == ["paris"] * 3
    han = byte_words()
    assert han.terms(han.encode("東京")) == list("東京".encode())


@given(st.lists(st.integers(0, 50)), st.integers(0, 200))
def test_shares_are_fair(wanted: list[int], room: int) -> None:
    shares = fair_shares(wanted, room)
    assert all(share <= want for share, want in zip(shares, wanted, strict=True))
    assert sum(shares) <= room
    cut = [share for share, want in zip(shares, wanted, strict=True) if share < want]
    if cut:
        assert room - sum(shares) < len(wanted)
        assert max(shares) <= min(cut) + 1
