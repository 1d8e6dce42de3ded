"""A task says what is run, and its summary is the outcome in plain numbers."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from cluster.errors import ConfigError
from cluster.model.workload import Slo
from cluster.pool_ledger import ReplicaLimits
from cluster.sim.driver import Orders, PoolFacts, Unsteered
from cluster.sim.failures import parse_failure
from cluster.sim.setup import PoolSetup, Setup
from cluster.sim.simulation import Simulation
from cluster.sim.spec import ReplicaSpec
from cluster.sim.task import SimTask, Summary, run_task, summarise
from cluster.sim.times import Piece
from cluster.traces.request import TraceRequest


@dataclass(frozen=True)
class PlainTimes:
    """10 ms a step, and a little for what is in it."""

    def decode_s(self, sequences: int, context: float, routed: int) -> float:
        return 0.010 + 0.001 * sequences + 1e-8 * context

    def mixed_s(
        self, sequences: int, context: float, pieces: Sequence[Piece], routed: int
    ) -> float:
        tokens = sum(piece.tokens for piece in pieces)
        return self.decode_s(sequences, context, routed) + 5e-5 * tokens

    def lag_s(self, prompt_tokens: int, chunks: int) -> float:
        return 0.002


SPEC = ReplicaSpec(times=PlainTimes(), max_num_seqs=8, chunk=2048, kv_blocks=1000, devices=2)
POOL = PoolSetup(
    name="main",
    spec=SPEC,
    replicas=2,
    limits=ReplicaLimits(max_requests=8, max_tokens=16_000),
    price_per_device_hour=3.0,
)
SETUP = Setup(pools=(POOL,), slo=Slo(ttft_s=0.5, tpot_s=0.02))
REQUESTS = tuple(
    TraceRequest(
        number / 20.0, 100 + 37 * number % 900, 1 + 7 * number % 60, blocks=(1, 2), block_tokens=16
    )
    for number in range(120)
)


class OneMore(Unsteered):
    """Asks for three replicas at its first tick."""

    def tick(self, facts: Sequence[PoolFacts], now_s: float) -> Orders:
        return Orders({fact.name: 3 for fact in facts})


def one_more() -> OneMore:
    return OneMore("main")


def test_a_summary_says_what_the_outcome_does() -> None:
    failures = (parse_failure("crash@2s:main/1"), parse_failure("slow@1s:main/0,factor=20"))
    task = SimTask(setup=replace(SETUP, failures=failures), seed=3)
    summary = run_task(task, REQUESTS)
    outcome = Simulation(task.setup, seed=3).run(REQUESTS)
    record = outcome.record
    assert summary == summarise(outcome)
    assert summary.arrived == 120
    assert 0 < summary.attained < summary.completed < 120
    assert summary.arrived == (
        summary.completed + sum(summary.refused.values()) + summary.unfinished
    )
    assert summary.refused == dict(record.refused) != {}
    assert summary.events["replicas hit: crash"] == 1
    assert (summary.attainment, summary.goodput_rps) == (outcome.attainment, outcome.goodput_rps)
    assert summary.ttft_s.p99 == record.ttft.quantile(0.99)
    assert summary.itl_s.mean == record.itl.mean
    assert summary.cached_share == record.cached_tokens / record.prompt_tokens > 0.0
    assert summary.cost == pytest.approx(summary.device_hours * 3.0)
    assert summary.replicas["main"].most == 2


def test_percentiles_rise() -> None:
    summary = run_task(SimTask(setup=SETUP), REQUESTS)
    for spread in (summary.ttft_s, summary.tpot_s, summary.itl_s, summary.e2e_s):
        values = [spread.p50, spread.p90, spread.p95, spread.p99]
        known = [value for value in values if value is not None]
        assert known == sorted(values, key=float)
    assert summary.e2e_s.p50 > summary.ttft_s.p50


def test_preemptions_are_counted_apart() -> None:
    small = replace(POOL, spec=replace(SPEC, kv_blocks=90, prefix_caching=False), replicas=1)
    requests = [TraceRequest(0.0, 160, 500) for _ in range(8)]
    summary = run_task(SimTask(setup=Setup(pools=(small,))), requests)
    assert summary.preemptions > 0
    assert "preemptions" not in summary.events
    assert summary.completed == 8


def test_it_is_json_even_when_nothing_came() -> None:
    summary = run_task(SimTask(setup=SETUP), ())
    told = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert told["ttft_s"] == dict.fromkeys(("mean", "p50", "p90", "p95", "p99"))
    assert (told["arrived"], told["cached_share"], told["completed_rps"]) == (0, 0.0, 0.0)
    full = run_task(SimTask(setup=SETUP), REQUESTS)
    assert json.loads(json.dumps(full.to_json(), allow_nan=False)) == full.to_json()


def test_cost_is_unknown_without_a_price() -> None:
    free = Setup(pools=(replace(POOL, price_per_device_hour=None),))
    assert run_task(SimTask(setup=free), REQUESTS).cost is None


def test_a_closed_loop_forgets_when_requests_came() -> None:
    late = [request._replace(arrival_s=1e6) for request in REQUESTS]
    task = SimTask(setup=SETUP, concurrency=4)
    summary = run_task(task, late)
    assert summary == run_task(task, REQUESTS)
    assert summary.completed == 120
    assert summary.duration_s < 1e3


def test_what_is_under_way_at_the_end_is_unfinished() -> None:
    summary = run_task(SimTask(setup=SETUP, until_s=2.0), REQUESTS)
    assert summary.duration_s <= 2.0
    assert summary.unfinished > 0
    assert summary.arrived < 120


def test_the_driver_is_made_for_every_run() -> None:
    task = SimTask(setup=SETUP, driver=one_more)
    first = run_task(task, [*REQUESTS, TraceRequest(100.0, 10, 10)])
    assert first.replicas["main"].most == 3
    assert first == run_task(task, [*REQUESTS, TraceRequest(100.0, 10, 10)])


def test_both_travel() -> None:
    task = SimTask(setup=SETUP, seed=1, driver=one_more)
    there = pickle.loads(pickle.dumps(task))
    summary = run_task(there, REQUESTS)
    assert summary == run_task(task, REQUESTS)
    back = pickle.loads(pickle.dumps(summary))
    assert isinstance(back, Summary)
    assert back == summary


@pytest.mark.parametrize(
    ("field", "value"), [("concurrency", 0), ("until_s", 0.0), ("until_s", float("nan"))]
)
def test_a_task_that_cannot_run_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"simulation: field '{field}': is .* Fix: leave it out"):
        SimTask(setup=SETUP, **{field: value})
