from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ConfigError, InputError, ShardwiseError, UnknownNameError
from cluster.model.cluster_file import parse_cluster
from cluster.model.devices import DEVICES

SAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "cluster.yaml"


@given(
    nodes=st.integers(1, 500), per_node=st.integers(1, 72), device=st.sampled_from(sorted(DEVICES))
)
def test_the_text_form_reads_back(nodes, per_node, device):
    for name in (device, device.upper()):
        (group,) = parse_cluster(f"{nodes}x{per_node}x{name}").groups
        assert (group.nodes, group.devices_per_node, group.device.name) == (nodes, per_node, device)


def test_one_node_and_mixed():
    assert parse_cluster("8xH100").groups[0].nodes == 1
    mixed = parse_cluster("2x8xH200 + 1x8xMI300X")
    assert [group.device.name for group in mixed.groups] == ["h200", "mi300x"]
    assert mixed.devices == 24


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "8x",
        "H100",
        "8 H100",
        "4x8x",
        "4.5xH100",
        "8xH100+",
        "٨xH100",
        "9" * 5000 + "xH100",
    ],
)
def test_malformed_text_shows_the_accepted_forms(text):
    with pytest.raises(InputError, match=r"malformed.*4x8xH200.*cluster\.yaml.*local"):
        parse_cluster(text)


@pytest.mark.parametrize("text", ["0x8xH100", "4x0xH100", "-1xH100"])
def test_counts_are_positive(text):
    with pytest.raises(InputError, match="at least 1"):
        parse_cluster(text)


def test_other_refusals():
    with pytest.raises(UnknownNameError, match="Did you mean"):
        parse_cluster("4x8xH20")
    with pytest.raises(InputError, match="at most 1,000,000"):
        parse_cluster("999999x8xH100")
    with pytest.raises(InputError, match="running Ray cluster"):
        parse_cluster("local")
    with pytest.raises(ConfigError, match="No such file"):
        parse_cluster("nowhere.yaml")


def test_the_sample_file():
    cluster = parse_cluster(str(SAMPLE))
    assert cluster.name == "lab"
    h200, reserved, prototype = cluster.groups
    assert h200.device is DEVICES["h200"]
    assert reserved.device.price_per_hour == 2.10
    assert reserved.device.memory_bytes == DEVICES["h100"].memory_bytes
    assert "like h100" in reserved.device.source
    assert (prototype.device.name, prototype.device.domain, prototype.devices) == (
        "prototype",
        4,
        4,
    )


GROUPS = "groups: [{nodes: 1, devices_per_node: 8, device: h100}]"


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ("groups: [", "", "line 1"),
        ("a: b: c", "", "not YAML"),
        ("[]", "", "valid dictionary|instance of"),
        ("{}", "groups", "required"),
        ("groups: []", "groups", "at least 1"),
        (
            "groups: [{nodes: 0, devices_per_node: 8, device: h100}]",
            "groups.0.nodes",
            "or equal to 1",
        ),
        (
            "groups: [{nodes: 1, devices_per_node: 8, device: h1}]",
            "groups.0.device",
            "unknown device",
        ),
        (GROUPS + "\nextra: 1", "extra", "not permitted"),
        (GROUPS + "\ndevices: {x: {like: h1}}", "devices.x.like", "unknown device"),
        (GROUPS + "\ndevices: {x: {domain: 2}}", "devices.x", "lacks memory_bytes"),
        (GROUPS + "\ndevices: {x: {like: h100, power_w: .nan}}", "devices.x.power_w", "finite"),
        (GROUPS + "\ndevices: {x: {like: h100, kind: tpu}}", "devices.x.kind", "pattern"),
        (
            GROUPS + "\ndevices: {x: {like: h100, flops: {fp7: 1}}}",
            "devices.x.flops.fp7.[key]",
            "fp8",
        ),
    ],
)
def test_a_bad_file_is_named_with_its_field(tmp_path, text, field, said):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said) as error:
        parse_cluster(str(path))
    assert error.value.field == field
    assert str(path) in str(error.value)


@given(st.text(max_size=30))
def test_any_text_ends_in_a_cluster_or_an_error_for_the_user(text):
    try:
        assert parse_cluster(text).devices > 0
    except ShardwiseError as error:
        assert str(error)
