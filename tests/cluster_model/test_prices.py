from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ConfigError, ShardwiseError
from cluster.model.cluster_file import parse_cluster
from cluster.model.devices import DEVICES
from cluster.model.prices import NO_PRICES, read_prices

FILE = """
source: our contract
date: 2026-11-01
H100_SXM: 1.5
b200: {usd_per_hour: 4, source: spot market, date: 2026-11-20}
gb200: {usd_per_hour: 9.25}
"""


def written(tmp_path, text: str):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    return path


def test_listed_devices_cost_what_the_file_says_and_others_what_they_did(tmp_path):
    prices = read_prices(written(tmp_path, FILE))
    mixed = prices.apply(parse_cluster("8xH100 + 2x8xH200 + 8xB200"))
    assert [group.device.price_per_hour for group in mixed.groups] == [
        1.5,
        DEVICES["h200"].price_per_hour,
        4.0,
    ]
    assert mixed.groups[0].device.memory_bytes == DEVICES["h100"].memory_bytes


def test_a_price_says_where_it_is_from(tmp_path):
    prices = read_prices(written(tmp_path, FILE))
    assert prices.source_of(DEVICES["h100"]) == "prices.yaml: our contract, 2026-11-01"
    assert prices.source_of(DEVICES["b200"]) == "prices.yaml: spot market, 2026-11-20"
    assert prices.source_of(DEVICES["h200"]) == "catalogue list price"
    unpriced = replace(DEVICES["h200"], price_per_hour=None)
    assert prices.source_of(unpriced) == "no price known"
    assert read_prices(written(tmp_path, "h100: 0")).source_of(DEVICES["h100"]) == "prices.yaml"


def test_a_device_of_a_cluster_file_can_be_priced(tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text(
        "devices: {mine: {like: h100, price_per_hour: 2.5}}\n"
        "groups: [{nodes: 1, devices_per_node: 8, device: mine}]"
    )
    cluster = parse_cluster(str(path))
    assert NO_PRICES.source_of(cluster.groups[0].device) == "cluster file"
    text = written(tmp_path, "mine: 2")
    prices = read_prices(text, clusters=[cluster])
    assert prices.apply(cluster).groups[0].device.price_per_hour == 2.0
    with pytest.raises(ConfigError, match="unknown device 'mine'"):
        read_prices(text)


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ("h10: 2", "h10", "Did you mean h100"),
        ("h100: -1", "h100", "greater than or equal to 0"),
        ("h100: .inf", "h100", "finite"),
        ("h100: two", "h100", "valid number"),
        ("h100: true", "h100", "valid number"),
        ("h100:", "h100", "valid number"),
        ("b200: {usd: 3}", "b200.usd_per_hour", "required"),
        ("b200: {usd_per_hour: 3, euro: 2}", "b200.euro", "not permitted"),
        ("b200: {usd_per_hour: x}", "b200.usd_per_hour", "valid number"),
        ("h100: 1\nh100-sxm: 2", "h100-sxm", "second time"),
        ("h100: 1\nH100: 2", "H100", "twice"),
        ("[]", "", "does not map"),
        ("", "", "does not map"),
        ("h100: [", "", "line 1"),
    ],
)
def test_a_bad_file_is_named_with_its_field(tmp_path, text, field, said):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=said) as error:
        read_prices(path)
    assert error.value.field == field
    assert str(path) in str(error.value)


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_prices(tmp_path / "nowhere.yaml")


@given(st.text(max_size=40))
def test_any_text_ends_in_prices_or_an_error_for_the_user(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("prices") / "p.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        read_prices(path)
    except ShardwiseError as error:
        assert str(error)
