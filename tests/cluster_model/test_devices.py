from __future__ import annotations

import pytest

from cluster.errors import UnknownNameError
from cluster.model.devices import ALIASES, DEVICES, get_device
from cluster.model.formats import NumberFormat
from cluster.model.hardware import NodeGroup

NAMES = [
    *("a100-40", "a100-80", "a100-80-pcie", "h100", "h100-pcie", "h200"),
    *("b200", "b300", "gb200", "gb300"),
    *("l40s", "l4", "a6000", "rtx-pro-6000", "mi300x", "cpu"),
]


def test_the_catalogue_is_complete():
    assert sorted(DEVICES) == sorted(NAMES)
    assert set(ALIASES.values()) <= set(DEVICES)
    assert not set(ALIASES) & set(DEVICES)


@pytest.mark.parametrize("device", DEVICES.values(), ids=str)
def test_every_row_is_plausible_and_sourced(device):
    assert device.source
    assert device.memory_bytes > device.reserved_bytes >= 0
    for rate in (device.memory_bandwidth, device.link_bandwidth, device.network_bandwidth):
        assert 1e9 <= rate < 1e13
    assert device.link_bandwidth <= device.memory_bandwidth
    assert 1e-7 < device.launch_overhead_s < device.link_latency_s < device.network_latency_s < 1e-3
    assert device.price_per_hour is None or 0.01 < device.price_per_hour < 100
    assert NumberFormat.FP32 in device.flops
    if device.kind == "gpu":
        assert device.flops[NumberFormat.FP32] < device.flops[NumberFormat.BF16]


def test_low_precision_is_not_slower_on_gpus():
    for device in DEVICES.values():
        flops = device.flops
        if NumberFormat.FP8 in flops:
            assert flops[NumberFormat.FP8] == pytest.approx(2 * flops[NumberFormat.BF16], rel=0.02)
        if NumberFormat.NVFP4 in flops:
            assert flops[NumberFormat.NVFP4] >= 1.99 * flops[NumberFormat.FP8]


@pytest.mark.parametrize(
    ("spelling", "name"),
    [("H200", "h200"), ("h100_sxm", "h100"), ("A100", "a100-80"), ("RTX Pro 6000", "rtx-pro-6000")],
)
def test_spellings(spelling, name):
    assert get_device(spelling) is DEVICES[name]


def test_unknown_device_names_the_near_miss():
    with pytest.raises(UnknownNameError, match=r"Did you mean .*h100"):
        get_device("h10O")


@pytest.mark.parametrize(
    ("device", "nodes", "per_node", "domain"),
    [
        ("h200", 4, 8, 8),
        ("h200", 4, 4, 4),
        ("gb200", 18, 4, 72),
        ("gb200", 2, 4, 8),
        ("cpu", 2, 16, 16),
    ],
)
def test_scale_up_domain_of_a_group(device, nodes, per_node, domain):
    group = NodeGroup(nodes=nodes, devices_per_node=per_node, device=get_device(device))
    assert group.domain_devices == domain
