"""The controller's account: all of it is of the contract, and what is unknown is absent."""

from __future__ import annotations

import math
from dataclasses import replace

from prometheus_client import CollectorRegistry

from autoscaler.controller import ControllerState, step
from autoscaler.replan_params import Planned, ReplanMode, ReplanParams
from autoscaler.snapshot import WorkloadObservation
from serving.control.accounting import Accounting, Seen
from serving.control.observe import Heard
from serving.keeper.account import Kept, ReplicaUse
from serving.layout.layouts import MoveProgress
from serving.telemetry.account_metrics import AccountMetrics
from serving.telemetry.account_rows import ACCOUNT_METRICS
from serving.telemetry.contract import CONTRACT
from serving.telemetry.metric import Sample
from tests.autoscaler.build import main_only, params
from tests.serving.fakes import report

PLANNED = ReplanParams(
    mode=ReplanMode.ADVISE,
    min_requests=1,
    planned=Planned(prompt_tokens=100.0, output_tokens=50.0, ttft_s=0.5, tpot_s=0.02),
)
WORKLOAD = WorkloadObservation(
    pool="main",
    observed_s=10.0,
    requests=5.0,
    requests_per_s=1.0,
    prompt_tokens=200.0,
    output_tokens=50.0,
    streams=5.0,
    ttft_s=0.6,
    tpot_s=math.nan,
    in_flight=1.0,
)


def account(accounting: Accounting, *, known: bool = True) -> tuple[Sample, ...]:
    p = params(replan=PLANNED)
    heard = Heard()
    heard.replicas = {"a": report("a", sent_s=10.0)}
    heard.kept = Kept(uses={"a": ReplicaUse(host_bytes=5.0)}, trouble={"n1": "NVML: no"})
    seen = Seen(heard=heard, params=p, now_s=12.0, ticked_s=10.0, trouble="Serve is away")
    if known:
        snapshot = replace(main_only(10.0, rate=500.0, target=1), workloads=(WORKLOAD,))
        result = step(ControllerState(), snapshot, p)
        accounting.decided(result.decisions, snapshot)
        seen = replace(seen, last=result, snapshot=snapshot)
    return accounting.samples(seen)


def exposed(samples: tuple[Sample, ...]) -> CollectorRegistry:
    registry = CollectorRegistry()
    metrics = AccountMetrics(("main",))
    metrics.samples, metrics.replicas = samples, (report("a", sent_s=10.0),)
    registry.register(metrics)
    return registry


def test_every_sample_is_of_the_contract_and_none_of_it_is_missing() -> None:
    accounting = Accounting(started_s=1.0)
    accounting.moved(_move(1, "done"))
    samples = account(accounting)
    for sample in samples:
        assert len(sample.labels) == len(CONTRACT[sample.name].labels), sample
    there = {sample.name for family in exposed(samples).collect() for sample in family.samples}
    unknown = {"shardwise_seen_tpot_seconds"}  # nothing has told it
    assert there == {metric.name for metric in ACCOUNT_METRICS} - unknown


def test_values_are_those_of_the_last_tick() -> None:
    registry = exposed(account(Accounting(started_s=1.0)))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"shardwise_{name}", labels)

    assert value("load_replicas", pool="main") == 0.5
    assert value("plan_ttft_seconds", pool="main") == 0.5
    assert value("seen_ttft_seconds", pool="main") == 0.6
    assert value("drift_ratio", pool="main", quantity="prompt_tokens") == 2.0
    assert value("drift_ratio", pool="main", quantity="ttft_s") is None  # prompts have drifted
    assert value("tick_age_seconds") == 2.0
    assert value("controller_trouble") == 1.0
    assert value("unseen_nodes") == 1.0
    assert value("replica_host_bytes", pool="main", replica="a") == 5.0


def test_what_has_not_happened_is_zero_for_every_kind_of_decision() -> None:
    registry = exposed(account(Accounting(started_s=1.0), known=False))
    labels = {"pool": "main", "action": "restart", "reason": "stalled"}
    assert registry.get_sample_value("shardwise_decisions_total", labels) == 0.0
    assert registry.get_sample_value("shardwise_moves_total", {"outcome": "rolled_back"}) == 0.0
    wrong = {"pool": "main", "action": "scale", "reason": "stalled"}
    assert registry.get_sample_value("shardwise_decisions_total", wrong) is None


def test_a_move_counts_once_when_it_has_ended() -> None:
    accounting = Accounting(started_s=1.0)
    for progress in (None, _move(1, "moving"), _move(1, "done"), _move(1, "done")):
        accounting.moved(progress)
    accounting.moved(_move(2, "rolled back"))
    assert accounting.moves == {"done": 1, "rolled_back": 1}


def test_replicas_that_are_gone_leave_no_series_behind() -> None:
    metrics = AccountMetrics(("main",))
    registry = CollectorRegistry()
    registry.register(metrics)
    name = "shardwise_replica_host_bytes"
    for replica, other in (("a", "b"), ("b", "a")):
        metrics.samples = (Sample(name=name, value=1.0, labels=("main", replica)),)
        assert registry.get_sample_value(name, {"pool": "main", "replica": replica}) == 1.0
        assert registry.get_sample_value(name, {"pool": "main", "replica": other}) is None


def _move(number: int, phase: str) -> MoveProgress:
    return MoveProgress(number=number, phase=phase, old="TP1", new="TP2", doing="")  # type: ignore[arg-type]
