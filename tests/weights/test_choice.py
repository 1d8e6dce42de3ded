"""Whom a file is fetched from, and which part of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serving.weights.choice import READERS, Offer, agreed_version, choose, chunks, order

NAMES = st.sampled_from(["a", "b", "c", "d"])
OFFERS = st.dictionaries(
    st.sampled_from(["n1", "n2", "n3", "n4"]),
    st.builds(
        Offer,
        version=st.sampled_from(["v1", "v2"]),
        files=st.frozensets(NAMES),
        origin=st.booleans(),
        readers=st.integers(0, READERS + 1),
    ),
)
WANTED = st.lists(NAMES, unique=True)
FAILED = st.frozensets(st.tuples(st.sampled_from(["n1", "n2", "n3", "n4"]), NAMES))


@given(WANTED, OFFERS, FAILED)
def test_the_choice_has_the_file_has_time_and_has_not_failed(wanted, offers, failed):
    able = {
        (name, peer)
        for peer, offer in offers.items()
        for name in offer.files & set(wanted)
        if offer.version == "v1" and offer.readers < READERS and (peer, name) not in failed
    }
    found = choose(wanted, offers, version="v1", failed=failed)
    assert (found in able) if able else found is None


@given(WANTED, OFFERS, FAILED)
def test_nobody_who_could_do_it_is_less_busy(wanted, offers, failed):
    found = choose(wanted, offers, version="v1", failed=failed)
    if found is not None:
        for peer, offer in offers.items():
            if offer.version == "v1" and any(
                name in offer.files and (peer, name) not in failed for name in wanted
            ):
                assert offers[found[1]].readers <= offer.readers


@given(OFFERS)
def test_an_origin_says_which_version_it_is(offers):
    version = agreed_version(offers)
    assert (version is None) == (not offers)
    origins = {offer.version for offer in offers.values() if offer.origin}
    if origins:
        assert version in origins


def test_without_an_origin_most_copies_say():
    def copy(version):
        return Offer(version=version, files=frozenset(), origin=False, readers=0)

    assert agreed_version({"n1": copy("v1"), "n2": copy("v2"), "n3": copy("v1")}) == "v1"


@given(st.lists(st.text(), unique=True), st.text())
def test_a_node_takes_every_file_once(files, node):
    assert sorted(order(files, node=node)) == sorted(files)


def test_nodes_begin_at_different_files():
    files = [str(number) for number in range(8)]
    assert len({order(files, node=f"node-{number}")[0] for number in range(32)}) > 4


@given(st.integers(0, 10_000), st.integers(0, 12_000), st.integers(1, 999))
def test_chunks_are_all_that_is_missing_and_nothing_twice(size, have, chunk):
    at = min(size, have)
    for offset, length in chunks(size, have=have, chunk=chunk):
        assert offset == at
        assert 0 < length <= chunk
        at += length
    assert at == size
