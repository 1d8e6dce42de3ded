"""The report of a search: one page, nothing fetched, nothing unescaped."""

from __future__ import annotations

import base64
import html
import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from cli.search_figures import (
    LEAST_REGRET,
    confidence_figure,
    curve_figure,
    pareto_figure,
    regret_figure,
    runs_of,
)
from cli.search_report import write_report
from cluster.errors import InputError

HEADS = ("tp", "batch", "moe:router", "residual")
PLAN = {"version": 1, "pools": [{"name": "main", "layout": {"tp": 4, "dp": 1, "dims": {}}}]}
POINTS = [
    {
        "tokens_per_s_per_user": 20.0,
        "tokens_per_s_per_device": 40.0,
        "layout": "TP8 x1",
        "chosen": False,
    },
    {
        "tokens_per_s_per_user": 14.0,
        "tokens_per_s_per_device": 49.5,
        "layout": "TP4 x2",
        "chosen": True,
    },
]
RUN: dict[str, Any] = {
    "schema": 1,
    "model": "moe-1.2T",
    "cluster": "8x8xH100",
    "method": "ppo",
    "fidelity": "cost-model",
    "seed": 3,
    "budget": 2000,
    "calls": 1500,
    "asked": 1800,
    "seconds": 12.5,
    "unit": "tokens/s/device",
    "space": {
        "described": "4 heads: 1e+11 combinations",
        "grid": 280_000_000_000,
        "size": 978_000_000,
        "heads": [{"name": name, "values": ["0", "1"]} for name in HEADS],
    },
    "best": {
        "value": 49.5,
        "calls": 700,
        "layout": "TP4 x2",
        "choices": {
            "tp": "tp 4",
            "batch": "batch 256",
            "moe:router": "moe:router 0",
            "residual": "0",
        },
        "plan": PLAN,
        "sentences": ["Residual stream cut by tokens.", "TPOT 70 ms instead of 72 ms."],
    },
    "heuristic": {"value": 45.0, "layout": "TP8 x1", "calls": 168},
    "exact": {"value": 50.0, "layout": "TP4 DP2 x1", "strategies": 7_150_000_000},
    "curve": [[5, 12.0], [200, 44.0], [700, 49.5]],
    "confidence": [
        {
            "calls": 64 * (step + 1),
            "chunk": step // 3,
            "heads": dict.fromkeys(HEADS, 0.3 + step / 10),
        }
        for step in range(6)
    ],
    "pareto": {"points": POINTS},
    "iterations": [],
}


def run(**changes: Any) -> dict[str, Any]:
    return deepcopy({**RUN, **changes})


def nothing(**changes: Any) -> dict[str, Any]:
    return run(best=None, curve=[], pareto={"points": []}, **changes)


def page(tmp_path: Path, *runs: dict[str, Any]) -> str:
    path = tmp_path / "new" / "report.html"
    write_report(path, runs)
    return path.read_text(encoding="utf-8")


def figures(text: str) -> list[str]:
    return re.findall(r'<div id="([a-z0-9-]+)" class="plotly-graph-div"', text)


def test_one_page_with_every_figure_and_nothing_to_fetch(tmp_path):
    text = page(tmp_path, run())
    assert figures(text) == ["curve", "regret", "confidence-0", "pareto"]
    assert text.count("* plotly.js v") == 1
    assert not re.search(r'<(script|link|img)[^>]*(src|href)="', text)
    assert '"showSendToCloud": false' in text  # no button sends a chart away
    assert text == page(tmp_path, run())


def test_what_was_asked_and_found_is_said_in_words(tmp_path):
    text = page(tmp_path, run())
    assert "most tokens/s/device for <b>moe-1.2T</b> on <b>8x8xH100</b>, judged by the cost" in text
    assert "found 49.5 tokens/s/device after 700 of 1,500 calls: <b>TP4 x2</b>" in text
    assert "10.00% above the heuristic (TP8 x1, 45)" in text
    assert "99.00% of the exact optimum (TP4 DP2 x1, 50, the best of 7.15e+09 strategies)" in text
    for sentence in RUN["best"]["sentences"]:
        assert f"<li>{sentence}</li>" in text


def test_choices_and_facts_stand_in_tables(tmp_path):
    text = page(tmp_path, run())
    for name, value in (
        ("tp", "4"),
        ("moe:router", "0"),
        ("asked for", "1,800 (300 answered from memory)"),
        ("against the heuristic", "+10.00%"),
        ("against the exact optimum", "-1.00%"),
        ("calls to within 5.0% of the optimum", "700"),
        ("calls to within 0.1% of the optimum", "not reached"),
    ):
        assert f'<tr><td>{name}</td><td class="n">{value}</td></tr>' in text
    assert "of residual 0 is by tokens" in text


def test_the_plan_is_in_the_page_with_how_to_serve_it(tmp_path):
    text = page(tmp_path, run())
    assert "<pre>shardwise up plan.json</pre>" in text
    found = re.search(r'href="data:application/json;base64,([^"]+)"', text)
    assert found
    assert json.loads(base64.b64decode(found[1])) == PLAN
    assert "Note:" not in text


def test_what_is_not_served_of_a_plan_is_said(tmp_path):
    plan = deepcopy(PLAN)
    plan["pools"][0]["layout"] |= {"dp": 2, "dims": {"residual": "0"}}  # type: ignore[index]
    text = page(tmp_path, run(best={**RUN["best"], "plan": plan}))
    assert "vLLM takes no per-operator dims" in text
    assert "serves replicas of dp 1" in text
    without = page(tmp_path, run(best={**RUN["best"], "plan": None}))
    assert "made no plan file" in without
    assert "shardwise up" not in without


def test_names_are_escaped_everywhere(tmp_path):
    evil = "<script>alert('x')</script>"
    heads = {evil: 0.5}
    made = run(
        model=evil,
        cluster=evil,
        method=evil,
        unit=evil,
        fidelity=evil,
        space={**RUN["space"], "described": evil},
        best={
            "value": 49.5,
            "calls": 7,
            "layout": evil,
            "choices": {evil: evil},
            "plan": {"pools": [], "note": evil},
            "sentences": [evil],
        },
        heuristic={"value": 45.0, "layout": evil, "calls": 1},
        exact={"value": 50.0, "layout": evil, "strategies": 9},
        confidence=[{"calls": 1, "chunk": 0, "heads": heads}],
        pareto={"points": [{**POINTS[1], "layout": evil}]},
    )
    text = page(tmp_path, made)
    assert "alert(" in text
    assert "<script>alert" not in text
    assert "</script>alert" not in text
    assert text.lower().count("<script") == 1 + len(figures(text))
    # Plotly reads markup in what JSON keeps apart from the page.
    drawn = (
        confidence_figure(runs_of([made])[0]).data[0].y,
        pareto_figure(runs_of([made])).data[0].text,
    )
    assert drawn == ((html.escape(evil, quote=False),), (html.escape(evil, quote=False),))


def test_nothing_found_is_said_and_not_drawn(tmp_path):
    text = page(tmp_path, nothing())
    assert "found nothing that satisfies everything in 1,500 calls" in text
    assert figures(text) == ["confidence-0"]
    assert "There is nothing to serve." in text
    assert "None that satisfies everything." in text


def test_without_an_exact_optimum_or_a_heuristic_there_is_no_regret(tmp_path):
    text = page(tmp_path, run(exact=None, heuristic=None, confidence=[]))
    assert figures(text) == ["curve", "pareto"]
    assert "The exact optimum is not known" in text
    for word in ("of the exact optimum (", "the heuristic (", "against the"):
        assert word not in text


def test_runs_of_one_question_share_their_figures(tmp_path):
    other = run(method="random", seed=4, confidence=[], best={**RUN["best"], "value": 41.0})
    text = page(tmp_path, run(), other, nothing(seed=5))
    assert figures(text) == ["curve", "regret", "confidence-0", "confidence-2", "pareto"]
    for label in ("ppo, seed 3", "random, seed 4", "ppo, seed 5"):
        assert f"<th>{label}</th>" in text
    assert "The plan of ppo, seed 3: " in text
    assert len(curve_figure(runs_of([run(), other])).data) == 2


def test_runs_alike_are_told_apart_by_number():
    assert [each.label for each in runs_of([run(), run()])] == [
        "ppo, seed 3 (1)",
        "ppo, seed 3 (2)",
    ]


def test_a_curve_holds_to_the_last_call_and_lines_are_drawn_once():
    figure = curve_figure(runs_of([run(), run()]))
    assert list(figure.data[0].x) == [5, 200, 700, 1500]
    assert list(figure.data[0].y) == [12.0, 44.0, 49.5, 49.5]
    assert sorted(shape.y0 for shape in figure.layout.shapes) == [45.0, 50.0]


def test_regret_at_the_optimum_keeps_a_place_on_the_logarithmic_axis(tmp_path):
    made = run(curve=[[5, 25.0], [9, 50.5]], best={**RUN["best"], "value": 50.5})
    figure = regret_figure(runs_of([made]))
    assert list(figure.data[0].y) == [0.5, LEAST_REGRET, LEAST_REGRET]
    assert figure.layout.yaxis.type == "log"
    assert "is drawn at 0.0001%" in page(tmp_path, made)


def test_chunks_are_parted_in_the_map_of_confidence():
    figure = confidence_figure(runs_of([run()])[0])
    assert [list(row) for row in figure.data[0].z] == [
        [0.3 + step / 10 for step in range(6)] for _ in HEADS
    ]
    assert [shape.x0 for shape in figure.layout.shapes] == [(192 + 256) / 2]


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "at least one run"),
        ([run(schema=2)], "schema 2 cannot be read"),
        ([{key: value for key, value in RUN.items() if key != "curve"}], "lacks curve"),
        ([run(), run(cluster="8xH100")], "cluster is 8x8xH100 and 8xH100"),
    ],
)
def test_what_makes_no_report_is_an_error(tmp_path, runs, message):
    with pytest.raises(InputError, match=message):
        write_report(tmp_path / "r.html", runs)


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_report(tmp_path / "file" / "r.html", [run()])
