"""A placement that can never be met is named before anyone waits for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import InputError
from cluster.model.layout import Layout
from cluster.ray_backend.bundles import replica_bundles
from cluster.ray_backend.capacity import PoolNeed, check_capacity


def need(*, tp: int = 1, pp: int = 1, replicas: int = 1, per_node: int = 8) -> PoolNeed:
    layout = Layout(tp=tp, moe_tp=tp, pp=pp)
    placement = replica_bundles(layout, device_kind="gpu", devices_per_node=per_node)
    return PoolNeed(pool="main", replicas=replicas, placement=placement)


def node(gpus: float, cpus: float = 64.0) -> dict[str, float]:
    return {"GPU": gpus, "CPU": cpus}


def test_what_fits_passes() -> None:
    check_capacity([need(tp=4, replicas=4)], [node(8), node(8)])
    check_capacity([need(tp=8, pp=2)], [node(8), node(8)])


def test_a_replica_is_not_split_over_nodes_its_group_must_share() -> None:
    with pytest.raises(InputError, match=r"replica 1 of 1 needs 8 GPU\(s\) on one node"):
        check_capacity([need(tp=8)], [node(4), node(4)])


def test_the_first_that_does_not_fit_is_named() -> None:
    with pytest.raises(InputError, match=r"replica 3 of 3 .* 2 node\(s\) with 8, 8 GPU"):
        check_capacity([need(tp=8, replicas=3)], [node(8), node(8)])


def test_other_resources_count_too() -> None:
    with pytest.raises(InputError):
        check_capacity([need(tp=8)], [node(8, cpus=4.0)])


def test_pools_share_the_nodes() -> None:
    with pytest.raises(InputError, match="replica 2 of 2"):
        check_capacity([need(tp=4), need(tp=4, replicas=2)], [node(8)])


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    replicas=st.integers(1, 12),
    nodes=st.integers(1, 6),
)
def test_equal_nodes_hold_what_division_says(tp: int, replicas: int, nodes: int) -> None:
    fits = replicas <= nodes * (8 // tp)
    try:
        check_capacity([need(tp=tp, replicas=replicas)], [node(8)] * nodes)
    except InputError:
        assert not fits
    else:
        assert fits
