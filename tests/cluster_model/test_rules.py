from __future__ import annotations

import csv
import re
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.model.catalogue import get_model, model_names
from cluster.model.cluster_file import parse_cluster
from cluster.model.devices import get_device
from cluster.model.group_rules import tp_groups
from cluster.model.hardware import NodeGroup
from cluster.model.layout import Layout, LayoutTable
from cluster.model.model_spec import AttentionKind
from cluster.model.rules import RULES, check_layouts, explain
from tests.shared_data import require_shared_data

CLUSTER = parse_cluster("4x8xH200")
DEGREES = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 128])
LAYOUTS = st.builds(
    Layout,
    tp=DEGREES,
    dp=DEGREES,
    pp=DEGREES,
    moe_tp=DEGREES,
    moe_ep=DEGREES,
    replicas=st.integers(1, 4),
    max_num_seqs=st.integers(1, 512),
)
# Random degrees seldom match; half of the layouts are built to.
GRIDS = st.builds(
    lambda layout, swap: replace(
        layout,
        moe_tp=layout.dp if swap else layout.tp,
        moe_ep=layout.tp if swap else layout.dp,
        max_num_seqs=layout.dp * (1 + layout.max_num_seqs % 7),
    ),
    LAYOUTS,
    st.booleans(),
)


def one(model_name, cluster_text, layout, **options):
    return explain(get_model(model_name), parse_cluster(cluster_text), layout, **options)


@given(model=st.sampled_from(model_names()), layout=LAYOUTS | GRIDS)
def test_a_layout_without_violations_divides_everything(model, layout):
    spec, group = get_model(model), CLUSTER.groups[0]
    report = check_layouts(spec, group, LayoutTable.from_layouts([layout]))
    violations = explain(spec, CLUSTER, layout)
    if not report.ok[0]:
        assert report.first_failure[0] >= 0
        assert report.shortfall[0] > 0
        assert violations
        return
    assert not violations
    assert report.shortfall[0] == 0
    assert report.first_failure[0] == -1
    assert layout.tp * layout.dp == layout.moe_tp * layout.moe_ep
    assert layout.devices <= group.devices
    assert layout.tp <= 8
    assert layout.max_num_seqs % layout.dp == 0
    assert layout.pp <= spec.num_layers
    for kind, _ in spec.layers:
        attention = kind.attention
        assert attention.heads % layout.tp == 0
        if attention.kind is AttentionKind.LINEAR:
            assert attention.kv_heads % layout.tp == 0
        else:
            assert attention.kv_heads % layout.tp == 0 or layout.tp % attention.kv_heads == 0
        for op in kind.operators:
            if op.name == "expert_down":
                assert op.copies % layout.moe_ep == 0
                assert op.rows % layout.moe_tp == 0
            if op.name in ("ffn_down", "shared_down"):
                assert op.rows % layout.tp == 0
    if not spec.experts:
        assert (layout.moe_tp, layout.moe_ep) == (layout.tp, layout.dp)


@given(
    layouts=st.lists(LAYOUTS | GRIDS, min_size=1, max_size=20), model=st.sampled_from(model_names())
)
def test_many_at_once_is_the_same_as_one_by_one(layouts, model):
    spec, group = get_model(model), CLUSTER.groups[0]
    together = check_layouts(spec, group, LayoutTable.from_layouts(layouts))
    for index, layout in enumerate(layouts):
        alone = check_layouts(spec, group, LayoutTable.from_layouts([layout]))
        assert np.array_equal(alone.margins[:, 0], together.margins[:, index])
    assert sum(together.counts().values()) == np.count_nonzero(~together.ok)


@given(model=st.sampled_from(model_names()), layout=LAYOUTS)
def test_violations_are_those_of_the_report_and_say_numbers(model, layout):
    spec = get_model(model)
    single = replace(layout, replicas=1)
    report = check_layouts(spec, CLUSTER.groups[0], LayoutTable.from_layouts([single]))
    violations = explain(spec, CLUSTER, single)
    broken = [rule.name for rule, m in zip(RULES, report.margins[:, 0], strict=True) if m < 0]
    assert [violation.rule for violation in violations] == broken
    for violation in violations:
        assert violation.margin < 0
        assert violation.fix
        assert any(character.isdigit() for character in violation.message)


@pytest.mark.parametrize(
    ("model", "cluster", "layout", "rule", "said"),
    [
        ("llama-3.1-70b", "8xH100", Layout(tp=0), "degrees", "tp = 0"),
        ("mixtral-8x7b", "8xH100", Layout(tp=4, moe_tp=2), "grid", r"4\*1 = 4 devices.*2\*1 = 2"),
        (
            "llama-3.1-70b",
            "8xH100",
            Layout(tp=8, moe_tp=8, pp=2),
            "devices",
            "need 16 devices.*has 8",
        ),
        ("llama-3.1-70b", "4x8xH100", Layout(tp=16, moe_tp=16), "domain", "domain of 8 h100"),
        (
            "smollm2-135m-instruct",
            "2x8xH100",
            Layout(tp=3, moe_tp=3, replicas=5),
            "packing",
            "5 TP groups of 3 are needed, but only 4 fit",
        ),
        ("mixtral-8x7b", "8xH100", Layout(dp=4, moe_ep=4, max_num_seqs=6), "batch", "remainder 2"),
        ("smollm2-135m-instruct", "8xH100", Layout(tp=2, moe_tp=2), "heads", "9 attention heads"),
        ("mixtral-8x22b", "4x16xcpu", Layout(tp=12, moe_tp=12), "kv_heads", "no multiple"),
        ("qwen3.5-397b-a17b", "4x32xcpu", Layout(tp=32, moe_tp=32), "kv_heads", "16 key heads"),
        ("mixtral-8x7b", "2x8xH100", Layout(dp=16, moe_ep=16), "experts", "8 experts"),
        ("qwen3-8b", "8xH100", Layout(tp=2, moe_ep=2), "experts", "no experts"),
        ("gemma-4-26b-a4b", "128xcpu", Layout(tp=16, dp=8, moe_tp=128), "expert_width", "704"),
        ("gemma-4-26b-a4b", "72xcpu", Layout(tp=36, moe_tp=36), "feed_forward", "2112"),
        ("qwen3-0.6b", "4x8xH100", Layout(pp=29), "layers", "28 layers"),
        ("llama-3.1-8b", "8xH100", Layout(tp=7, moe_tp=7), "vocabulary", "remainder 2"),
    ],
)
def test_each_rule_names_its_numbers(model, cluster, layout, rule, said):
    found = {violation.rule: violation for violation in one(model, cluster, layout)}
    assert rule in found
    assert re.search(said, found[rule].message)
    assert found[rule].rule in str(found[rule])


def test_every_rule_has_a_case_above():
    cases = test_each_rule_names_its_numbers.pytestmark[0].args[1]
    assert {case[3] for case in cases} == {rule.name for rule in RULES}


def test_kv_heads_may_be_repeated():
    layout = Layout(tp=8, moe_tp=8)
    assert not one("qwen3-235b-a22b", "8xH100", layout)  # 4 key-value heads over 8 ranks
    assert not one("deepseek-v3", "8xB200", layout)  # one latent for all heads


def test_cross_domain_tp_on_request():
    layout = Layout(tp=16, moe_tp=16)
    assert [v.rule for v in one("llama-3.1-70b", "2x8xH100", layout)] == ["domain"]
    assert not one("llama-3.1-70b", "2x8xH100", layout, cross_domain_tp=True)
    assert not one("llama-3.1-70b", "16x4xGB200", Layout(tp=64, moe_tp=64))


def test_margins_grow_with_the_fault():
    spec, group = get_model("mixtral-8x7b"), CLUSTER.groups[0]
    table = LayoutTable.from_layouts([Layout(pp=1, replicas=n) for n in (32, 33, 64, 320)])
    shortfall = check_layouts(spec, group, table).shortfall
    assert shortfall[0] == 0
    assert list(shortfall[1:]) == pytest.approx([1 / 32, 1.0, 9.0])  # of the 32 devices there are


def test_a_replica_never_spans_two_groups_but_replicas_do():
    mixed = parse_cluster("1x8xH100+1x8xA100")
    spec = get_model("llama-3.1-8b")
    assert not explain(spec, mixed, Layout(tp=8, moe_tp=8, replicas=2))
    (violation,) = explain(spec, mixed, Layout(tp=8, moe_tp=8, replicas=3))
    assert violation.message.startswith("3 replicas")
    assert "at most 2" in violation.fix
    found = explain(spec, mixed, Layout(tp=8, moe_tp=8, pp=2))
    assert [v.rule for v in found] == ["devices"]


@given(tp=st.integers(1, 100), nodes=st.integers(1, 20), per_node=st.integers(1, 16))
def test_tp_groups_never_overlap(tp, nodes, per_node):
    for name in ("h100", "gb200"):
        group = NodeGroup(nodes=nodes, devices_per_node=per_node, device=get_device(name))
        found = int(tp_groups(group, np.asarray([tp]))[0])
        assert 0 <= found * tp <= group.devices
        if tp == 1:
            assert found == group.devices


def test_every_measured_run_is_a_valid_layout():
    # Whatever engines really ran must pass, or a rule forbids what works.
    path = require_shared_data() / "silicon" / "runs.csv"
    rows = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            tp, dp = int(row["tp"]), int(row["attention_dp"])
            moe = (int(row["moe_tp"]), int(row["moe_ep"]))
            key = (row["config"].replace("--", "/"), row["system"])
            moe = moe if get_model(key[0]).experts else (tp, dp)  # the file writes 1, 1 if dense
            rows[key].append((tp, dp, 1, *moe, 1, dp * int(row["concurrency"]), 8192))
    checked = 0
    for (model, system), layouts in rows.items():
        per_node = 4 if system.startswith("gb") else 8
        group = NodeGroup(nodes=16, devices_per_node=per_node, device=get_device(system))
        report = check_layouts(get_model(model), group, LayoutTable.from_rows(layouts))
        assert report.counts() == {}, (model, system)
        checked += len(layouts)
    assert checked == 2287
