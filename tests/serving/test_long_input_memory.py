"""What a conversation's memory keeps, for how long, for whom, and what comes back of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.long_input.apply import Handled, with_memory
from serving.long_input.prompt import Segment
from serving.long_input.store import Conversation, LocalStore
from serving.requests import ChatBody
from tests.serving.fakes import Clock
from tests.serving.long_prompts import WordModel, chat, completion, filler, says, text_of


def store(clock: Clock, **fields: Any) -> LocalStore:
    settings = {"conversations": 3, "tokens": 10, "ttl_s": 60.0} | fields
    return LocalStore(clock=clock, **settings)


def said(*texts: str, tokens: int = 1) -> list[tuple[Segment, int]]:
    return [(Segment("user", text), tokens) for text in texts]


async def texts(of: LocalStore, name: str, owner: str = "") -> list[str]:
    return [segment.text for segment in await of.recall(Conversation(owner, name))]


async def test_segments_come_back_in_their_order_and_once() -> None:
    kept = store(Clock())
    await kept.remember(Conversation("", "c"), said("one", "two"))
    await kept.remember(Conversation("", "c"), said("two", "three", "one"))
    assert await texts(kept, "c") == ["one", "two", "three"]
    assert await texts(kept, "d") == []


async def test_of_too_many_tokens_the_oldest_are_forgotten() -> None:
    kept = store(Clock(), tokens=10)
    await kept.remember(Conversation("", "c"), said("one", "two", "three", tokens=4))
    assert await texts(kept, "c") == ["two", "three"]


async def test_a_conversation_is_forgotten_some_time_after_its_last_use() -> None:
    clock = Clock()
    kept = store(clock)
    for name in ("a", "b"):
        await kept.remember(Conversation("", name), said(name))
    clock.now_s += 50
    assert await texts(kept, "a") == ["a"]
    clock.now_s += 50
    assert (await texts(kept, "a"), await texts(kept, "b")) == (["a"], [])
    clock.now_s += 61
    assert await texts(kept, "a") == []
    assert len(kept) == 0


async def test_of_too_many_conversations_the_one_used_longest_ago_goes() -> None:
    kept = store(Clock(), conversations=2)
    for name in ("a", "b"):
        await kept.remember(Conversation("", name), said(name))
    await kept.recall(Conversation("", "a"))
    await kept.remember(Conversation("", "c"), said("c"))
    assert [await texts(kept, name) for name in "abc"] == [["a"], [], ["c"]]


async def test_whoever_holds_the_most_gives_way() -> None:
    kept = store(Clock(), conversations=3)
    await kept.remember(Conversation("quiet", "q"), said("q"))
    for name in "abcdefg":
        await kept.remember(Conversation("loud", name), said(name))
    assert await texts(kept, "q", "quiet") == ["q"]
    assert await texts(kept, "g", "loud") == ["g"]
    assert len(kept) == 3


OWNERS, IDS = st.sampled_from(["", "one", "two"]), st.sampled_from("abc")


@given(st.lists(st.tuples(OWNERS, IDS, st.integers(1, 6), st.integers(0, 30)), max_size=40))
async def test_bounds_hold_and_nothing_reaches_another_key(
    steps: list[tuple[str, str, int, int]],
) -> None:
    clock = Clock()
    kept = store(clock, conversations=4, tokens=10)
    for owner, name, tokens, wait_s in steps:
        clock.now_s += wait_s
        text = f"{owner} {name} {clock.now_s}"
        await kept.remember(Conversation(owner, name), said(text, tokens=tokens))
        assert len(kept) <= 4
        for found in await texts(kept, name, owner):
            assert found.startswith(f"{owner} {name} ")
        assert len(await texts(kept, name, owner)) <= 10


def recalled(
    *messages: dict[str, Any], earlier: list[str], budget: int = 200, recall_tokens: int = 60
) -> tuple[Handled, list[str]]:
    model = WordModel()
    body = chat(*messages)
    frame = model.frame(
        recall_tokens=recall_tokens, earlier=tuple(Segment("user", text) for text in earlier)
    )
    came = Handled(body=body, prompts=model.encode(body))
    made, segments = with_memory(came, frame=frame, budget=budget)
    assert made.lengths == tuple(map(len, model.encode(made.body)))
    assert made.lengths[0] <= max(budget, came.lengths[0])
    return made, [segment.text.strip() for segment, _ in segments]


def last(made: Handled) -> str:
    assert isinstance(made.body, ChatBody)
    return text_of(made.body.messages[-1])


FACTS = [f"The code of the {thing} is {number}." for number, thing in enumerate(["safe", "door"])]


def test_what_belongs_to_the_newest_message_comes_back_in_front_of_it() -> None:
    made, kept = recalled(
        says("user", "What is the code of the door?"),
        earlier=[*FACTS, *filler(300).split("\n\n")],
        recall_tokens=30,
    )
    assert last(made).startswith(f"Earlier in this conversation:\n[user] {FACTS[0]}\n")
    assert FACTS[1] in last(made)
    assert last(made).endswith("\n\nWhat is the code of the door?")
    assert kept == ["What is the code of the door?"], "what came back is not said again"
    assert made.cut is not None
    assert (made.cut.cut, made.cut.recalled) == (0, made.cut.kept - made.cut.before)
    assert 0 < made.cut.recalled <= 30


def test_turns_that_are_cut_come_back_where_they_matter() -> None:
    turns = [says("user", FACTS[0]), says("assistant", "noted")]
    for at in range(5):
        turns += [says("user", filler(30, start=60 * at)), says("assistant", filler(30, start=60))]
    made, kept = recalled(*turns, says("user", "What is the code of the safe?"), earlier=[])
    assert FACTS[0] in last(made)
    assert FACTS[0] in kept
    assert made.cut is not None
    assert made.cut.cut > 0


def test_a_prompt_that_fits_is_not_cut_for_what_comes_back() -> None:
    turns = [says("user", filler(30)), says("assistant", filler(20)), says("user", "what code?")]
    made, _ = recalled(*turns, earlier=[*FACTS, *filler(90, start=50).split("\n\n")], budget=90)
    assert isinstance(made.body, ChatBody)
    before = chat(*turns)
    assert made.body.messages[:-1] == before.messages[:-1]
    assert last(made).endswith("what code?")


def test_what_is_in_the_prompt_does_not_come_back() -> None:
    made, _ = recalled(says("user", FACTS[0]), earlier=[FACTS[0]])
    assert made.cut is None
    assert last(made) == FACTS[0]


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=20),
    st.integers(1, 120),
    st.integers(40, 150),
)
def test_what_comes_back_fits(sizes: list[int], question: int, budget: int) -> None:
    earlier = [filler(size, start=1000 * at) for at, size in enumerate(sizes)]
    made, _ = recalled(says("user", filler(question)), earlier=earlier, budget=budget)
    if made.cut is not None:
        assert made.cut.recalled <= 60


@pytest.mark.parametrize("form", ["text", "ids"])
def test_a_plain_prompt_has_a_memory_too(form: str) -> None:
    model = WordModel()
    text = "What is the code of the safe?"
    body = completion(text if form == "text" else model.tokens(text))
    frame = model.frame(recall_tokens=40, earlier=(Segment("user", FACTS[0]),))
    came = Handled(body=body, prompts=model.encode(body))
    made, _ = with_memory(came, frame=frame, budget=80)
    prompt = made.body.prompt  # type: ignore[union-attr]
    assert type(prompt) is type(body.prompt)
    shown = prompt if isinstance(prompt, str) else model.decode(prompt)  # type: ignore[arg-type]
    assert FACTS[0] in shown
    assert shown.endswith(text)
