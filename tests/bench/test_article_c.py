from __future__ import annotations

import json
from dataclasses import asdict, replace
from math import comb

import numpy as np
import pytest

from bench import gpt_moe_1p8t as bench
from bench.gpt_moe_claims import (
    EP16,
    EP16PP4,
    READING_SPEED,
    TP2EP16PP2,
    TP4EP4PP4,
    TP64,
    combinations,
    least_devices_for_weights,
)
from bench.gpt_moe_curves import (
    CHUNKS,
    DEVICES,
    EXPERTS,
    MEMORY,
    Setting,
    fp4,
    hardware,
    name_of,
    reported_model,
)
from cluster.model.catalogue import get_model
from cluster.model.workload import Workload

SETTING = Setting(
    model=fp4(reported_model()),
    group=hardware(),
    workload=Workload(isl=4096, osl=1024),
    batches=(1, 2, 8, 32, 128, 512),
    chunks=(32, 128, 256, 896, 4096),
)
CURVES = {degrees: SETTING.curve(degrees) for degrees in (EP16, EP16PP4, TP64, TP4EP4PP4)}


def test_the_shapes_add_up_to_what_is_reported():
    model = reported_model()
    (kind, layers), *others = model.layers
    assert not others
    experts = [op for op in kind.operators if op.copies == EXPERTS]
    attention = [op for op in kind.operators if op.group == "attention"]
    assert layers * sum(op.rows * op.cols for op in experts) == pytest.approx(111e9, rel=0.03)
    assert layers * sum(op.params for op in attention) == pytest.approx(55e9, rel=0.05)
    assert model.params == pytest.approx(1.8e12, rel=0.05)
    assert model.experts_per_token == 2


def test_the_counts_follow_from_their_rules():
    # Four powers of two of product 2^6: six stars, three bars.
    assert len(combinations()) == comb(6 + 3, 3)
    need = least_devices_for_weights(reported_model())
    by_hand = [
        (a, b, c)
        for a in range(7)
        for b in range(5)  # EP <= 16
        for c in range(7)
        if a + b + c <= 6 and 2 ** (a + b + c) >= need
    ]
    stated = combinations(most_ep=EXPERTS, least_devices=need)
    assert len(stated) == len(by_hand) == len(set(stated))
    found = bench.count_claim(SETTING).values["counts"]
    assert len(by_hand) in found.values()
    assert all(0 < count <= comb(9, 3) for count in found.values())
    assert {EP16, EP16PP4, TP64, TP4EP4PP4, TP2EP16PP2} <= set(stated)


def test_names_are_the_articles():
    named = {EP16: "EP16DP4", EP16PP4: "EP16PP4", TP64: "TP64", TP4EP4PP4: "TP4EP4PP4"}
    assert {degrees: name_of(degrees) for degrees in named} == named


@pytest.mark.parametrize("model", [reported_model(), get_model("gpt-moe-1.8t")])
def test_fp4_weights_take_five_devices_and_scales_make_it_no_fewer(model):
    assert 4 * MEMORY < 0.5 * model.params <= 5 * MEMORY
    assert least_devices_for_weights(model) == 5
    values = bench.memory_claim(replace(SETTING, model=fp4(model))).values
    assert 5 <= values["as_stored"] <= values["layout_fits"]["0%"]
    assert values["layout_fits"]["0%"] <= values["layout_fits"]["20%"] < DEVICES


def test_a_pipeline_leaves_more_room_for_the_cache():
    base, piped = CURVES[EP16], CURVES[EP16PP4]
    one, four = (
        float(curve.estimates.kv_capacity_tokens.max()) * float(curve.table.replicas[0])
        for curve in (base, piped)
    )
    assert four > one


def test_mixed_layouts_beat_tensor_parallelism_alone_at_reading_speed():
    mixed, alone = (
        CURVES[degrees].busiest(per_user=READING_SPEED) for degrees in (TP4EP4PP4, TP64)
    )
    assert mixed.tokens_per_s_per_device > alone.tokens_per_s_per_device
    # …and tensor parallelism reaches speeds that the mixed one cannot.
    tops = [
        float(CURVES[d].estimates.tokens_per_s_per_user[CURVES[d].ok].max())
        for d in (TP4EP4PP4, TP64)
    ]
    assert tops[0] < tops[1]


@pytest.mark.parametrize("curve", CURVES.values(), ids=map(name_of, CURVES))
def test_asking_for_more_speed_never_gives_more_throughput(curve):
    points = [curve.busiest(per_user=speed) for speed in (0.0, 5.0, 10.0, 20.0, 30.0)]
    figures = [0.0 if p is None else p.tokens_per_s_per_device for p in points]
    assert figures == sorted(figures, reverse=True)
    assert figures[0] > 0.0
    for speed, point in zip((0.0, 5.0, 10.0, 20.0, 30.0), points, strict=True):
        if point is not None:
            assert point.tokens_per_s_per_user >= speed
            assert sum(point.tpot_parts_ms.values()) == pytest.approx(
                1e3 / point.tokens_per_s_per_user
            )


def test_the_best_chunk_is_the_best_of_the_sweep():
    values = bench.chunk_claim(SETTING).values
    swept = {chunk: v for chunk, v in values["sweep"].items() if v is not None}
    assert swept
    best = values["best"]
    assert best["tokens_per_s_per_device"] == max(swept.values()) == swept[str(best["chunk"])]
    assert best["tokens_per_s_per_user"] >= READING_SPEED


def test_the_articles_grid_of_chunks_makes_its_number_of_points():
    assert (CHUNKS[0], CHUNKS[-1]) == (128, 8192)
    assert set(np.diff(CHUNKS).tolist()) == {128, 256}
    assert 2_700 < 73 * len(CHUNKS) < 2_800
    assert 896 in CHUNKS


def test_our_figures_come_from_the_hardware_that_is_asked_about():
    device = replace(SETTING.group.device, memory_bandwidth=4e12)
    slower = replace(SETTING, group=replace(SETTING.group, device=device))
    for claim in (bench.experts_claim, bench.tensor_claim, bench.chunk_claim):
        assert claim(SETTING).values != claim(slower).values
        assert claim(SETTING).article == claim(slower).article


def test_the_command_prints_every_claim_and_writes_it(tmp_path, capsys):
    path = tmp_path / "c.json"
    bench.main(["--quick", "--isl", "2048", "--json", str(path)])
    printed = capsys.readouterr().out
    (claims,) = json.loads(path.read_text()).values()
    assert len(claims) == len(bench.CLAIMS)
    for claim in claims:
        assert claim["name"] in printed
        assert claim["ours"]
        assert claim["ours"] in printed
        assert claim["ours"] != claim["article"]


def test_a_claim_is_plain_data():
    assert json.loads(json.dumps(asdict(bench.memory_claim(SETTING))))["name"]
