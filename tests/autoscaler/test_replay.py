import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.controller import ControllerState, step
from autoscaler.decision_log import Change, Header, Tick, dump, parse_line
from autoscaler.reasons import Action, Reason
from autoscaler.replay import replay
from autoscaler.snapshot import (
    ClusterSnapshot,
    Decision,
    PoolObservation,
    ReplicaObservation,
    Tier,
)
from autoscaler.virtual import Scenario, run
from cluster.errors import ConfigError, InputError
from tests.autoscaler.build import load, main_only, params


@pytest.fixture(scope="module")
def log():
    scenario = Scenario(
        duration_s=700.0,
        arrival_tokens_per_s=lambda t: 4000.0 if 60.0 <= t < 200.0 else 300.0,
        blind=((250.0, 280.0),),
        by_hand=((400.0, "main", 3),),
    )
    return run(params(maximum=2, light=True), scenario).log_lines()


def edit(log, index, change):
    data = json.loads(log[index])
    change(data)
    lines = list(log)
    lines[index] = json.dumps(data)
    return lines


def test_a_virtual_run_replays_identically(log):
    result = replay(log)
    assert result.identical
    assert (result.runs, result.ticks) == (1, 350)
    assert result.decisions > 10


def test_a_restarted_controller_appends_a_run(log):
    result = replay([*log, "", *log])
    assert result.identical
    assert (result.runs, result.ticks) == (2, 700)


def test_parameters_that_change_on_the_way_keep_the_state(log):
    half = len(log) // 2
    same = dump(Change(params=params(maximum=2, light=True)))
    assert replay([*log[:half], same, *log[half:]]).identical
    other = dump(Change(params=params(maximum=1, light=True)))
    assert not replay([*log[:half], other, *log[half:]]).identical


def test_a_tampered_decision_is_found(log):
    index = next(i for i, line in enumerate(log) if '"scale"' in line)
    result = replay(edit(log, index, lambda d: d["decisions"][0].update(value=7)))
    assert [d.line for d in result.differences] == [index + 1]
    assert result.differences[0].recorded[0].value == 7
    assert result.differences[0].replayed[0].value != 7


def test_a_tampered_load_is_found(log):
    index = next(i for i, line in enumerate(log) if '"scale"' in line)

    def calm(data):
        data["snapshot"]["loads"][0].update(
            arrival_tokens_per_s=0.0, in_flight_tokens=0.0, queued_tokens=0.0
        )

    assert not replay(edit(log, index, calm)).identical


def test_a_tampered_tier_or_parameter_is_found(log):
    assert not replay(edit(log, 5, lambda d: d.update(tier=4))).identical
    changed = edit(log, 0, lambda d: d["params"]["scaling"].update(up_delay_s=20.0))
    assert not replay(changed).identical


def test_records_survive_the_round_trip():
    snapshot = ClusterSnapshot(
        now_s=1.0 / 3.0,
        pools=(
            PoolObservation(
                pool="main",
                observed_s=0.1,
                target=2,
                ready=1,
                pending=1,
                replicas=(
                    ReplicaObservation(
                        replica_id="a", observed_s=0.1, running=3, waiting=0, kv_usage=0.25
                    ),
                ),
            ),
        ),
        loads=(load(0.2, rate=1e-9),),
    )
    decision = Decision(
        action=Action.HOLD,
        pool="main",
        value=2,
        kind=Reason.KEPT,
        reason="why",
        numbers=(("a", 0.1),),
    )
    for record in (
        Header(params=params(light=True)),
        Tick(snapshot=snapshot, decisions=(decision,), tier=Tier.SHED),
    ):
        assert parse_line(dump(record), source="test") == record


def test_a_metric_that_is_not_a_number_survives_as_unknown():
    p = params()
    seen = main_only(0.0, rate=math.nan, flight=math.inf)
    result = step(ControllerState(), seen, p)
    tick = Tick(snapshot=seen, decisions=result.decisions, tier=result.tier)
    line = dump(tick)
    assert "NaN" not in line
    assert "Infinity" not in line
    assert replay([dump(Header(params=p)), line]).identical


@pytest.mark.parametrize(
    ("index", "change", "expected"),
    [
        (0, lambda d: d.update(version=1), "line 1: field 'version'"),
        (0, lambda d: d["params"].pop("tiers"), "line 1: field 'params.tiers'"),
        (0, lambda d: d["params"]["tiers"].update(leave_s=-1.0), "leave_s"),
        (0, lambda d: d["params"]["forecast"].update(method="oracle"), "unknown forecaster"),
        (3, lambda d: d.update(kind="tock"), "line 4: field 'kind'"),
        (3, lambda d: d.update(tier=9), "line 4: field 'tier'"),
        (3, lambda d: d.update(extra=1), "line 4: field 'extra'"),
        (3, lambda d: d["snapshot"].pop("now_s"), "line 4: field 'snapshot.now_s'"),
        (3, lambda d: d["snapshot"]["pools"][0].update(ready="1"), "snapshot.pools[0].ready"),
        (3, lambda d: d["snapshot"]["loads"][1].pop("pool"), "snapshot.loads[1].pool"),
        (3, lambda d: d["snapshot"]["loads"][1].update(pool="dark"), "unknown pool 'dark'"),
        (3, lambda d: d["decisions"].append({"action": "dance"}), "decisions[0].action"),
    ],
)
def test_bad_records_name_line_and_field(log, index, change, expected):
    with pytest.raises(InputError) as caught:
        replay(edit(log, index, change), source="x.jsonl")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "no header line"),
        (["", "  "], "no header line"),
        (["{"], "line 1: is not JSON"),
        (["[1]"], "line 1: is a list, not an object"),
    ],
)
def test_files_that_are_no_log(lines, expected):
    with pytest.raises(ConfigError, match=expected):
        replay(lines)


def test_a_cut_off_last_line_says_what_to_do(log):
    with pytest.raises(ConfigError, match=r"line 10: is not JSON.*remove that line"):
        replay([*log[:9], log[9][:40]])


def test_a_log_from_the_middle_is_refused(log):
    with pytest.raises(ConfigError, match="starts with a header"):
        replay(log[1:])


def test_the_log_holds_all_it_needs(log):
    header = parse_line(log[0], source="test")
    assert isinstance(header, Header)
    assert header.params == params(maximum=2, light=True)
    assert replace(header.params, tick_s=1.0) != header.params


@pytest.mark.parametrize("line", ["[" * 100_000, "9" * 5000])
def test_a_line_beyond_the_json_reader_is_a_config_error(line):
    with pytest.raises(ConfigError, match=r"test.*cannot be read as JSON"):
        parse_line(line, source="test")


def test_the_fields_of_the_log_are_documented(log):
    page = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
    section = page.partition("### Decision log")[2].partition("### Other logs")[0]
    named = set(re.findall(r"`(\w+)`", section))
    header, *ticks = (json.loads(line) for line in log)
    decided = next(tick for tick in ticks if tick["decisions"])
    for found in (header, decided, decided["decisions"][0], decided["snapshot"]):
        assert found.keys() <= named
