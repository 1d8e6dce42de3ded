from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.pool_ledger import PoolLedger, ReplicaLimits
from cluster.prefix_index import BLOCK_TOKENS, PrefixIndex, block_chain
from cluster.priority import Priority
from cluster.routing import CACHED_WORTH, ReplicaView, RouteRequest, pick
from cluster.waiting_line import Ask, WaitingLine
from tests.cluster_model.test_several_gateways import Report

TOKENS = st.lists(st.integers(0, 3), max_size=40)


@given(TOKENS, TOKENS, TOKENS)
def test_prompts_share_the_blocks_of_their_common_beginning(
    common: list[int], one: list[int], other: list[int]
) -> None:
    first, second = (block_chain(common + rest, block_tokens=4) for rest in (one, other))
    same = [a == b for a, b in zip(first, second, strict=False)]
    alike = next(
        (i for i, (a, b) in enumerate(zip(common + one, common + other, strict=False)) if a != b),
        min(len(common + one), len(common + other)),
    )
    assert same == [index < alike // 4 for index in range(len(same))]


def test_a_prompt_shorter_than_a_block_has_no_chain() -> None:
    assert block_chain([1] * (BLOCK_TOKENS - 1)) == ()


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 9), max_size=8))),
    st.integers(1, 6),
)
def test_no_more_is_kept_of_a_replica_than_it_holds(
    notes: list[tuple[str, list[int]]], most: int
) -> None:
    index = PrefixIndex(most_blocks=most)
    for replica, chain in notes:
        index.note(chain, replica)
        shares = index.shares(chain)
        assert all(0.0 < share <= 1.0 for share in shares.values())
        if chain and len(set(chain)) <= most:
            assert shares[replica] == 1.0
    assert all(len(held) <= most for held in index._held.values())


def test_the_end_of_a_chain_is_forgotten_before_its_beginning() -> None:
    index = PrefixIndex(most_blocks=4)
    index.note([1, 2, 3, 4], "a")
    index.note([7], "a")
    assert index.shares([1, 2, 3, 4]) == {"a": 0.75}


def test_a_replica_that_is_gone_is_forgotten() -> None:
    index = PrefixIndex(most_blocks=4)
    index.note([1], "a")
    index.keep(["b"])
    assert index.shares([1]) == {}


def view(name: str, tokens: float) -> ReplicaView:
    return ReplicaView(name, tokens, 1, 1000, 100_000.0)


def test_a_cache_draws_a_request_as_far_as_it_saves_and_no_further() -> None:
    request = RouteRequest(1000.0, cached={"cached": 0.5})
    worth = CACHED_WORTH * 500.0
    for more, chosen in ((0.9 * worth, "cached"), (1.1 * worth, "other")):
        picked = pick(request, [view("cached", more), view("other", 0.0)], tie=0.0)
        assert picked is not None
        assert picked.replica_id == chosen


def test_turns_of_a_conversation_go_where_the_first_went() -> None:
    ledger = PoolLedger(
        limits=ReplicaLimits(max_requests=8, max_tokens=100_000.0),
        line=WaitingLine(limit=9, delays_s={Priority.STANDARD: 30.0}),
        draw=lambda: 0.0,
        prefixes=PrefixIndex(most_blocks=1000),
    )
    ledger.observe([Report(replica_id=name, sent_s=0.0) for name in "abcd"])
    went = []
    for turn in range(3):
        for talk in range(4):
            chain = tuple(100 * talk + block for block in range(4 + turn))
            ask = Ask(Priority.STANDARD, 400.0, 0.0, prefix=chain)
            ledger.line.put(ask, now_s=0.0)
            ((_, replica),) = ledger.place(0.0)
            went.append(replica)
    assert went[:4] == went[4:8] == went[8:]
    assert sorted(went[:4]) == ["a", "b", "c", "d"]
