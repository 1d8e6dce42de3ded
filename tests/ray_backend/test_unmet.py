from hypothesis import given
from hypothesis import strategies as st

from cluster.ray_backend.unmet import NodeRoom, unmet


def node(name, *, free, total=8.0, cpus=64.0):
    return NodeRoom(name=name, free={"GPU": free, "CPU": cpus}, total={"GPU": total, "CPU": 64.0})


ONE = {"GPU": 1.0}


def test_what_fits_is_not_unmet():
    assert unmet("main", [ONE, ONE], "PACK", [node("a", free=1), node("b", free=1)]) == ""
    assert unmet("main", [ONE] * 8, "STRICT_PACK", [node("a", free=8)]) == ""


def test_the_bundle_and_the_freest_node_are_named():
    told = unmet("main", [{"GPU": 4.0}], "PACK", [node("a", free=2)])
    assert told == ("bundle {'GPU': 4} of pool main fits no node: the freest has 2 of 8 GPU free")


def test_what_even_an_empty_node_does_not_have_is_said():
    told = unmet("main", [{"GPU": 16.0}], "PACK", [node("a", free=8)])
    assert told.endswith("the freest has 8 of 8 GPU free, and none has 16 in all")


def test_each_node_is_told():
    told = unmet("main", [{"GPU": 4.0}], "PACK", [node("a", free=1), node("b", free=3)])
    assert told.endswith("the freest has 3 of 8 GPU free (b 3 of 8, a 1 of 8)")
    many = [node(str(i), free=1) for i in range(6)]
    assert unmet("main", [{"GPU": 4.0}], "PACK", many).endswith("3 1 of 8, 2 more)")


def test_bundles_that_must_share_a_node_are_counted_together():
    nodes = [node("a", free=3), node("b", free=2)]
    told = unmet("main", [ONE] * 4, "STRICT_PACK", nodes)
    assert told.startswith("4 bundles {'GPU': 1} of pool main fit together on no node: the freest")


def test_the_resource_that_is_missing_is_the_one_told():
    told = unmet("main", [{"CPU": 1.0, "GPU": 1.0}], "PACK", [node("a", free=4, cpus=0)])
    assert "the freest has 0 of 64 CPU free" in told


def test_a_bundle_beside_others_says_so():
    told = unmet("light", [ONE] * 3, "PACK", [node("a", free=2)])
    assert told.startswith("bundle {'GPU': 1} of pool light fits no node beside the 2 before it:")


def test_strict_spread_asks_for_a_node_each():
    nodes = [node("a", free=8)]
    assert unmet("main", [ONE, ONE], "STRICT_SPREAD", nodes).endswith("only 1 node(s) are there")
    assert unmet("main", [ONE, ONE], "STRICT_SPREAD", [*nodes, node("b", free=1)]) == ""


def test_without_nodes_that_is_what_is_said():
    assert unmet("main", [ONE], "PACK", []) == "no node is there for pool main"


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=5),
    st.lists(st.integers(1, 8), min_size=1, max_size=5),
    st.sampled_from(["PACK", "STRICT_PACK"]),
)
def test_more_room_never_makes_it_worse(free, asked, strategy):
    bundles = [{"GPU": float(count)} for count in sorted(asked, reverse=True)]
    nodes = [node(str(i), free=float(count)) for i, count in enumerate(free)]
    if unmet("main", bundles, strategy, nodes) == "":
        assert unmet("main", bundles, strategy, [*nodes, node("more", free=8.0)]) == ""
        assert sum(free) >= sum(asked)
