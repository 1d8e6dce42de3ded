"""How many tokens within the bounds does a strategy deliver? The second fidelity: the simulator.

What breaks a rule of layouts, or memory, is told by the cost model as in the first fidelity, and
never simulated. Of every other strategy one replica meets the same trace at several loads, shares
of the rate that the cost model says it sustains with its batch full. The latency bounds are the
simulator's to judge, request by request; the cost model's are not asked. At a load,

    goodput = requests that completed within TTFT and TPOT / seconds      (refused ones missed)
    seconds = from the first arrival to the end, less the time in which an output is decoded

A trace of finite length ends with a batch that runs empty, which takes the time of an output and
is no part of serving; without it a thousand requests tell what three thousand do. The value is that
of the best load, in output tokens/s/device, like `Priority.THROUGHPUT`'s.

Shapes: (n,) for a batch of n.
Invariants: the same seed gives the same answers; a strategy satisfies everything where a request
did at some load, and its value is above 0 exactly then; a task that fails is told, never raised.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from cluster.costmodel.calibration_file import default_coefficients
from cluster.errors import InputError, ShardwiseError
from cluster.model.layout import Layout
from cluster.model.workload import Slo
from cluster.pool_ledger import ReplicaLimits
from cluster.routing import predicted_tokens
from cluster.sim.from_plan import ReplicaSource, replica_spec
from cluster.sim.setup import GatewayRules, PoolSetup, Setup
from cluster.sim.task import Result, Run, SimTask, Summary, TaskFailed
from cluster.traces.request import TraceRequest
from rl_search.evaluator import MOST, Ints, Judged, estimate_own, kept, missed, waiting
from rl_search.margins import memory_margins
from rl_search.space import ActionSpace

# Most strategies do best near the rate they sustain; those whose batch limit is more than the
# bounds allow, or so small that requests wait for places, at about half of it or less.
LOADS = (0.3, 0.5, 0.8, 0.9, 1.1)

_FAILED = 1.0  # shortfall of what could not be simulated
_LEAST = 1e-3  # shortfall where medians are within the bounds, but not of the same requests
_BLOCK = 64  # strategies whose step times, up to a megabyte each, are held at once


@dataclass(frozen=True, kw_only=True)
class TraceFacts:
    """What the evaluator knows of the trace that its tasks run on. `output_tokens` is the mean."""

    requests: int
    first_s: float
    last_s: float
    output_tokens: float

    @classmethod
    def of(cls, requests: Iterable[TraceRequest]) -> TraceFacts:
        """Raises InputError for a trace that has no rate."""
        arrivals, outputs = [], 0
        for request in requests:
            arrivals.append(request.arrival_s)
            outputs += request.output_tokens
        if not arrivals or arrivals[-1] <= arrivals[0]:
            raise InputError(
                f"a trace of {len(arrivals)} request(s), none later than another, has no rate to "
                "scale. Fix: pass one of at least 2 requests over some time (1,000 tell "
                "strategies apart)."
            )
        return cls(
            requests=len(arrivals),
            first_s=arrivals[0],
            last_s=arrivals[-1],
            output_tokens=outputs / len(arrivals),
        )

    @property
    def rate(self) -> float:
        """Requests/s."""
        return (self.requests - 1) / (self.last_s - self.first_s)


class Goodput:
    """Strategies by their goodput on the trace, at the best of `loads`.

    `run` simulates tasks on the trace that `trace` is of: on actors (`SimPool.map`, `shared_run`),
    or here (`attempt_task` for each). `gateway` as `shardwise simulate` has it by default.
    `simulations` counts tasks, `failures` tells which strategies could not be simulated, and why.
    """

    def __init__(
        self,
        space: ActionSpace,
        *,
        run: Run,
        trace: TraceFacts,
        loads: Sequence[float] = LOADS,
        gateway: GatewayRules | None = None,
        seed: int = 0,
    ) -> None:
        question = space.question
        if any(head.dims for head in space.heads):
            raise InputError(
                f"goodput of the `{question.options.space.value}` space: its strategies cut "
                "operators one by one, which the simulator does not price. Fix: search the `vllm` "
                "space (--space vllm), or judge by the cost model."
            )
        if question.slo.ttft_s is None and question.slo.tpot_s is None:
            raise InputError(
                "goodput counts requests within latency bounds, and there are none. Fix: pass "
                "--ttft or --tpot (or both), or judge by the cost model."
            )
        if not loads or any(not 0.0 < load < math.inf for load in loads):
            told = ", ".join(f"{load:g}" for load in loads) or "(none)"
            raise InputError(
                f"goodput at the loads {told}: there must be some, finite and above 0. Fix: leave "
                "them at their default."
            )
        self._space, self._run, self._trace, self._loads = space, run, trace, tuple(loads)
        self._gateway = gateway or GatewayRules(
            expected_output=question.workload.osl, length_predictor="formula"
        )
        self._source = ReplicaSource(
            model=question.model,
            group=question.group,
            serving=question.serving,
            coefficients=question.coefficients or default_coefficients(),
        )
        self._seed = seed
        self.simulations = 0
        self.failures: list[str] = []

    @property
    def space(self) -> ActionSpace:
        """Which strategies there are."""
        return self._space

    def judge(self, actions: Ints) -> Judged:
        """Everything that fits, simulated; the rest by how far it is off."""
        table, shortfall, rows = kept(self._space, actions)
        value, bubble = np.zeros(len(table)), np.zeros(len(table))
        if not len(rows):
            return Judged(value, shortfall, bubble)
        question, table = self._space.question, table.take(rows)
        estimates = estimate_own(question, table)
        shortfall[rows] = missed(
            memory_margins(table, estimates.memory, max_model_len=question.max_model_len)
        )
        bubble[rows] = waiting(estimates)
        # The last bits of an estimate depend on how many are estimated at once; an answer may not.
        rates = [float(f"{rate:.9g}") for rate in estimates.requests_per_s.tolist()]
        tokens = estimates.kv_capacity_tokens.tolist()
        fit = np.flatnonzero(shortfall[rows] <= 0.0).tolist()
        for first in range(0, len(fit), _BLOCK):
            block = fit[first : first + _BLOCK]
            asked = [_Asked(table.row(at), int(tokens[at]), rates[at]) for at in block]
            found = self._simulated(asked)
            value[rows[block]], shortfall[rows[block]] = np.asarray(found).T
        return Judged(value, shortfall, bubble)

    def _simulated(self, asked: Sequence[_Asked]) -> list[tuple[float, float]]:
        """Value and shortfall of each, from one call of `run`."""
        setups = [self._setup(one) for one in asked]
        tasks = [
            SimTask(setup=setup, seed=self._seed, speed_up=self._speed_up(load, one))
            for one, setup in zip(asked, setups, strict=True)
            if isinstance(setup, Setup)
            for load in self._loads
        ]
        self.simulations += len(tasks)
        results = iter(self._run(tasks) if tasks else ())
        return [
            self._scored(one, list(islice(results, len(self._loads))))
            if isinstance(setup, Setup)
            else self._failed(one, setup)
            for one, setup in zip(asked, setups, strict=True)
        ]

    def _setup(self, asked: _Asked) -> Setup | TaskFailed:
        """One replica behind the gateway, there from the beginning."""
        question, layout = self._space.question, asked.layout
        workload = question.workload
        try:
            spec = replica_spec(
                self._source, layout, kv_tokens=asked.kv_tokens, weight_bytes=0.0, cold_start_s=0.0
            )
        except ShardwiseError as error:
            return TaskFailed(message=str(error))
        request = predicted_tokens(prompt_tokens=workload.isl, output_tokens=workload.osl)
        # What `cluster.pool_capacity` says of a plan's replica.
        held = max(1.0, min(layout.max_num_seqs * request, float(asked.kv_tokens)))
        pool = PoolSetup(
            name="main",
            spec=spec,
            replicas=1,
            limits=ReplicaLimits(max_requests=layout.max_num_seqs, max_tokens=held),
            max_context=question.max_model_len,
        )
        return Setup(pools=(pool,), gateway=self._gateway, slo=question.slo)

    def _speed_up(self, load: float, asked: _Asked) -> float:
        return load * asked.requests_per_s / self._trace.rate

    def _scored(self, asked: _Asked, found: Sequence[Result]) -> tuple[float, float]:
        rates, over = [0.0], [MOST]
        for load, result in zip(self._loads, found, strict=True):
            if isinstance(result, TaskFailed):
                return self._failed(asked, result)
            rates.append(goodput(result, self._trace, speed_up=self._speed_up(load, asked)))
            over.append(_over(result, self._space.question.slo))
        best = max(rates) / asked.layout.devices_per_replica
        return best * self._trace.output_tokens, 0.0 if best > 0.0 else max(min(over), _LEAST)

    def _failed(self, asked: _Asked, why: TaskFailed) -> tuple[float, float]:
        self.failures.append(f"{asked.described()}: {why.message}")
        return 0.0, _FAILED


@dataclass(frozen=True)
class _Asked:
    """A strategy to simulate: what its replica caches, and the rate that it is said to sustain."""

    layout: Layout
    kv_tokens: int
    requests_per_s: float

    def described(self) -> str:
        layout = self.layout
        return (
            f"{layout.describe()}, batch {layout.max_num_seqs}, "
            f"chunk {layout.max_num_batched_tokens}"
        )


def goodput(summary: Summary, trace: TraceFacts, *, speed_up: float = 1.0) -> float:
    """Requests/s within the bounds, of a trace at `speed_up` times its rate.

    Time counts without that of the last outputs, but never less than requests arrived in.
    """
    decoding_s = (summary.tpot_s.mean or 0.0) * summary.output_tokens / max(1, summary.completed)
    ended_s = max(summary.duration_s - decoding_s, trace.last_s / speed_up)
    return summary.attained / (ended_s - trace.first_s / speed_up)


def _over(summary: Summary, slo: Slo) -> float:
    """By how much the medians are over their bounds, relative and summed."""
    if not summary.completed:
        return MOST
    over = 0.0
    for limit, median in ((slo.ttft_s, summary.ttft_s.p50), (slo.tpot_s, summary.tpot_s.p50)):
        if limit is not None and median is not None:
            over += max(0.0, median / limit - 1.0)
    return min(over, MOST)
