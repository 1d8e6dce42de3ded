from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.model.layout import Layout
from cluster.ray_backend.bundles import replica_bundles
from cluster.ray_backend.inventory import cpu_group, local_cluster


@pytest.mark.parametrize(
    ("layout", "strategy"),
    [
        (Layout(), "STRICT_PACK"),
        (Layout(tp=4, pp=2, moe_tp=4), "STRICT_PACK"),
        (Layout(tp=8, pp=2, moe_tp=8), "PACK"),
    ],
)
def test_a_replica_has_a_bundle_per_rank_and_stays_on_a_node_where_it_fits(layout, strategy):
    placement = replica_bundles(layout, device_kind="gpu", devices_per_node=8)
    assert placement.bundles == ({"CPU": 1.0, "GPU": 1.0},) * layout.devices_per_replica
    assert placement.strategy == strategy


def test_replicas_do_not_change_the_group_of_one():
    one = replica_bundles(Layout(tp=2, moe_tp=2), device_kind="cpu", devices_per_node=2)
    many = replica_bundles(
        replace(Layout(tp=2, moe_tp=2), replicas=5), device_kind="cpu", devices_per_node=2
    )
    assert one == many
    assert one.bundles == ({"CPU": 1.0},) * 2


def test_this_machine_offers_a_device_per_core_and_shares_its_memory_among_them():
    group = cpu_group()
    assert group.device.kind == "cpu"
    assert group.devices >= 1
    total = group.device.memory_bytes * group.devices
    assert 2**28 < total < 2**45
    assert local_cluster().groups[0].nodes == 1
