"""A timeline that viewers open: spans nest, lanes do not overlap, nothing is lost."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.errors import ConfigError
from cluster.pool_ledger import ReplicaLimits
from cluster.sim.chrome_trace import ChromeTrace
from cluster.sim.failure_file import read_failures
from cluster.sim.failures import Failure, Fault, parse_failure
from cluster.sim.setup import GatewayRules, PoolSetup, Setup
from cluster.sim.simulation import Simulation
from cluster.sim.spec import ReplicaSpec, Role
from cluster.traces.request import TraceRequest


@dataclass(frozen=True)
class Times:
    def decode_s(self, sequences, context, routed):
        return 0.01 + 0.001 * sequences

    def mixed_s(self, sequences, context, pieces, routed):
        return 0.01 + 0.001 * sequences + 1e-4 * sum(piece.tokens for piece in pieces)

    def lag_s(self, prompt_tokens, chunks):
        return 0.0


SPEC = ReplicaSpec(times=Times(), max_num_seqs=4, chunk=64, kv_blocks=200, start_s=2.0)


def pool(name="main", replicas=2, role=Role.BOTH):
    return PoolSetup(
        name=name,
        spec=replace(SPEC, role=role),
        replicas=replicas,
        limits=ReplicaLimits(max_requests=4, max_tokens=3200),
    )


def traced(*pools, requests, most=1000, failures=(), gateway=None):
    log = ChromeTrace(most=most)
    setup = Setup(pools=pools, failures=failures, gateway=gateway or GatewayRules())
    outcome = Simulation(setup, log=log).run(requests)
    document = json.loads(json.dumps(log.document(end_s=outcome.duration_s), allow_nan=False))
    check(document)
    return document, outcome


def some(count, *, gap_s=0.05, prompt=100, output=20):
    return [TraceRequest(i * gap_s, prompt, output) for i in range(count)]


def spans(document, name=None):
    found = [event for event in document["traceEvents"] if event["ph"] == "X"]
    return [e for e in found if name is None or e["name"] == name]


def check(document):
    """Spans of a lane nest or are apart; children fill their request."""
    lanes = defaultdict(list)
    for event in spans(document):
        assert event["dur"] >= 0
        assert isinstance(event["ts"], int)
        lanes[event["pid"], event["tid"]].append(event)
    for events in lanes.values():
        end, parent = 0, None
        for event in events:  # written request by request
            if "args" in event:
                assert event["ts"] >= end
                parent, end, at = event, event["ts"] + event["dur"], event["ts"]
            else:
                assert event["ts"] == at
                at += event["dur"]
                assert at <= parent["ts"] + parent["dur"]


def processes(document):
    return {
        event["args"]["name"]: event["pid"]
        for event in document["traceEvents"]
        if event["name"] == "process_name"
    }


def test_every_request_has_its_phases_and_every_replica_its_process():
    document, _ = traced(pool(), requests=some(30, gap_s=0.01))
    assert list(processes(document)) == ["gateway", "main/0", "main/1"]
    assert len(spans(document, "prefill")) == len(spans(document, "decode")) == 30
    assert spans(document, "queued")  # 8 places for more
    whole = [event for event in spans(document) if "args" in event]
    assert {event["name"] for event in whole} == {f"request {n}" for n in range(30)}
    assert all(event["args"]["end"] == "finished" for event in whole)
    instants = [event for event in document["traceEvents"] if event["ph"] == "i"]
    assert [event["name"] for event in instants] == ["ready", "ready"]


def test_counters_come_back_to_zero_and_never_exceed_the_limit():
    document, _ = traced(pool(), requests=some(30, gap_s=0.01))
    counts = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "C" and event["name"] == "requests in flight":
            counts[event["pid"]].append((event["ts"], event["args"]["requests"]))
    assert len(counts) == 2
    for values in counts.values():
        assert values == sorted(values)
        assert values[-1][1] == 0
        assert 0 < max(count for _, count in values) <= 4


def test_a_lost_replica_ends_its_spans_and_streams_go_on_elsewhere():
    failure = Failure(kind=Fault.CRASH, at_s=0.5, pool="main", number=0)
    document, outcome = traced(
        pool(), requests=some(30), failures=(failure,), gateway=GatewayRules(resumes=True)
    )
    lost = [e for e in spans(document) if e.get("args", {}).get("end") == "replica lost"]
    assert lost
    assert outcome.record.completed == 30
    assert len(spans(document, "resumed")) == outcome.record.events["resumed mid-stream"] > 0
    names = [e["name"] for e in document["traceEvents"] if e["ph"] == "i"]
    assert names == ["ready", "ready", "crash", "lost", "ready"]
    ready = [e["args"] for e in document["traceEvents"] if e["name"] == "ready replicas"]
    assert ready == [{"main": 1}, {"main": 2}, {"main": 1}, {"main": 2}]


def test_prefill_and_decode_replicas_share_a_request():
    document, _ = traced(
        pool("prefill", 1, Role.PREFILL), pool("decode", 1, Role.DECODE), requests=some(10)
    )
    place = processes(document)
    first, then = (
        [e for e in spans(document) if e["pid"] == place[f"{role}/0"]]
        for role in ("prefill", "decode")
    )
    assert {e["name"] for e in first if "args" not in e} <= {"queued", "prefill"}
    assert all(e["args"]["end"] == "handed over" for e in first if "args" in e)
    assert len([e for e in then if e["name"] == "decode"]) == 10
    assert not [e for e in then if e["name"] == "prefill"]


def test_refused_requests_are_at_the_gateway():
    document, outcome = traced(pool(), requests=[*some(3), TraceRequest(1.0, 5000, 10)])
    assert sum(outcome.record.refused.values()) == 1
    (refused,) = spans(document, "refused")
    assert refused["pid"] == processes(document)["gateway"]
    (whole,) = [e for e in spans(document) if e["name"] == "request 3"]
    assert whole["args"]["end"] == "longer than the KV cache"


def test_only_the_first_requests_are_kept():
    document, _ = traced(pool(), requests=some(30), most=7)
    assert document["otherData"] == {"requests": 7, "requests left out": 23}
    assert len([e for e in spans(document) if "args" in e]) == 7


def test_what_is_under_way_at_the_end_ends_there():
    log = ChromeTrace()
    Simulation(Setup(pools=(pool(),)), log=log).run(some(30), until_s=0.4)
    document = log.document(end_s=0.4)
    check(document)
    left = [e for e in spans(document) if e.get("args", {}).get("end") == "unfinished"]
    assert left
    assert all(e["ts"] + e["dur"] == 400_000 for e in left)


@settings(max_examples=25)
@given(
    sizes=st.lists(
        st.tuples(st.floats(0, 0.2), st.integers(1, 300), st.integers(1, 40)), min_size=1
    ),
    crash_s=st.floats(0, 2),
    resumes=st.booleans(),
)
def test_lanes_never_overlap(sizes, crash_s, resumes):
    at_s, requests = 0.0, []
    for gap_s, prompt, output in sizes:
        at_s += gap_s
        requests.append(TraceRequest(at_s, prompt, output))
    document, outcome = traced(
        pool(),
        requests=requests,
        failures=(Failure(kind=Fault.CRASH, at_s=crash_s, pool="main", number=0),),
        gateway=GatewayRules(resumes=resumes, reschedule_after_s=0.1),
    )
    ends = [e["args"]["end"] for e in spans(document) if "args" in e]
    assert ends.count("finished") == outcome.record.completed


def test_a_file_of_failures_says_what_the_words_say(tmp_path):
    file = tmp_path / "f.yaml"
    file.write_text(
        "- {kind: crash, at: 120s, target: main/1}\n"
        "- {kind: slow, at: 90, target: node/0, for: 2min, factor: 3}\n"
    )
    assert read_failures(file) == (
        parse_failure("crash@120s:main/1"),
        parse_failure("slow@90s:node/0,for=2min,factor=3"),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: crash\n", "valid list"),
        ("- {kind: crush, at: 1s, target: main/0}\n", "0.kind"),
        ("- {kind: crash, at: 1s}\n", "0.target"),
        ("- {kind: crash, at: soon, target: main/0}\n", "entry 0"),
        ("- {kind: crash, at: 1s, target: main}\n", "entry 0"),
        ("- {kind: slow, at: 1s, target: main/0, factor: 0.5}\n", "factor"),
        ("- [\n", "cannot be read"),
    ],
)
def test_a_wrong_file_of_failures_is_named(tmp_path, text, said):
    file = tmp_path / "f.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said) as error:
        read_failures(file)
    assert str(file) in str(error.value)
