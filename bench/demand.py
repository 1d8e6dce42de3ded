"""Does it pay to count load in engine-seconds, and to correct them by what replicas deliver?

    python -m bench.demand [--quick] [--json FILE] [--folder TRACES]

Llama-3.1-70B on replicas of 4 H100, planned for one mix of requests and asked another; the trace
simulator under the live controller with its defaults, 1 to 24 replicas. By how load is counted:

- tokens: `token_load`, predicted tokens over those of the plan's workload at its goodput;
- work: `engine_work`, the prices of prompt and output tokens;
- corrected: either, corrected by measured over predicted speed (tokens: the default).

*Mixes*: Azure's conversation trace and code trace (long prompts, short answers; it comes in bursts)
on plans made for either, the reasoning trace (long answers), and one whose lengths change every ten
minutes from conversation to code and back while requests come as in the conversation trace, so that
nothing but the lengths changes; at two target utilisations. *Wrong plans*: conversation where every
step takes half or twice as long as the plan's cost model says. The SLO is TTFT 2 s and TPOT 100 ms;
attainment counts requests within it.

Azure's traces at six times their rate (copies at random moments before the next request). Without
the public traces (../shared/data) it ends with a message. --quick: the first case of each kind, at
one utilisation.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path

from autoscaler.delivery_params import DeliveryParams
from autoscaler.forecast import LAST_VALUE
from autoscaler.forecast_params import ForecastParams
from autoscaler.headroom import SHARE
from autoscaler.headroom_params import HeadroomParams
from autoscaler.params import ControllerParams
from autoscaler.simulated import Steered
from cluster.costmodel.estimate import estimate
from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.layout import LayoutTable
from cluster.model.plan import (
    ClusterSection,
    LayoutSection,
    ModelSection,
    Plan,
    PoolSection,
    ReplicaBounds,
    SloSection,
    WorkloadSection,
)
from cluster.model.planned import planned_model
from cluster.model.workload import Slo, Workload
from cluster.sim.from_plan import pool_setups
from cluster.sim.setup import GatewayRules, PoolSetup, Setup
from cluster.sim.simulation import Simulation
from cluster.sim.times import Piece, StepTimes
from cluster.traces.files import open_trace
from cluster.traces.options import WindowOptions
from cluster.traces.request import TraceRequest
from cluster.traces.scaling import cut, sample
from rl_search.plan_writer import expectation
from serving.settings.steering_config import SteeringSection, controller_params

TRACES = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "traces"
CONV, CODE = "AzureLLMInferenceTrace_conv_2023.csv", "AzureLLMInferenceTrace_code_2023.csv"
REASONING = "servegen_reason_deepseek-r1_10min.csv"
MODEL, CLUSTER = "llama-3.1-70b", "12x8xH100"
SLO = Slo(ttft_s=2.0, tpot_s=0.1)
BATCH, MOST = 64, 24
ROOM = 131_072
RATE = 6.0
LASTS_S, PHASE_S = 1200.0, 600.0
BELIEVED = DeliveryParams(least=1.0, most=1.0)


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Mean tokens of a trace's requests, which a plan is made for."""

    name: str
    isl: int
    osl: int


CONVERSATION = Mix(name="conversation", isl=1155, osl=211)
CODING = Mix(name="code", isl=2048, osl=28)


@dataclass(frozen=True, kw_only=True)
class Case:
    """`served`: what comes. `slow`: what a step takes over what the plan's cost model says.

    `targets`: utilisations that are planned for; pools shrink at three quarters of them.
    """

    served: str
    planned: Mix
    slow: float = 1.0
    targets: tuple[float, ...] = (0.8,)


MIXES = (
    Case(served="changing", planned=CONVERSATION, targets=(0.8, 0.6)),
    Case(served="changing", planned=CODING, targets=(0.8, 0.6)),
    Case(served="conversation", planned=CONVERSATION),
    Case(served="code", planned=CONVERSATION),
    Case(served="conversation", planned=CODING),
    Case(served="reasoning", planned=CONVERSATION),
)
WRONG = (
    Case(served="conversation", planned=CONVERSATION, slow=2.0),
    Case(served="conversation", planned=CONVERSATION, slow=0.5),
)


@dataclass(frozen=True, kw_only=True)
class Counting:
    """How load is counted."""

    name: str
    policy: str
    delivery: DeliveryParams = BELIEVED


COUNTINGS = (
    Counting(name="tokens", policy="token_load"),
    Counting(name="tokens, corrected", policy="token_load", delivery=DeliveryParams()),
    Counting(name="work", policy="engine_work"),
    Counting(name="work, corrected", policy="engine_work", delivery=DeliveryParams()),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run. `delivered`: measured over predicted speed at the end."""

    served: str
    planned: str
    slow: float
    counting: str
    target: float
    requests: int
    attainment: float
    gpu_hours: float
    replicas: float
    delivered: float


@dataclass(frozen=True, slots=True)
class Slowed:
    """Step times, all of them `factor` times as long."""

    times: StepTimes
    factor: float

    def decode_s(self, sequences: int, context: float, routed: int) -> float:
        """See `StepTimes`."""
        return self.factor * self.times.decode_s(sequences, context, routed)

    def mixed_s(
        self, sequences: int, context: float, pieces: Sequence[Piece], routed: int
    ) -> float:
        """See `StepTimes`."""
        return self.factor * self.times.mixed_s(sequences, context, pieces, routed)

    def lag_s(self, prompt_tokens: int, chunks: int) -> float:
        """See `StepTimes`."""
        return self.times.lag_s(prompt_tokens, chunks)


def plan_for(mix: Mix) -> Plan:
    """A plan of 4 H100 a replica and a batch of `BATCH`, with the cost model's expectation."""
    group, model = parse_cluster(CLUSTER).groups[0], get_model(MODEL)
    layout = LayoutSection(tp=4, moe_tp=4, max_num_seqs=BATCH, max_num_batched_tokens=8192)
    found = estimate(
        model,
        group,
        LayoutTable.from_layouts([layout.to_layout(replicas=1)]),
        Workload(isl=mix.isl, osl=mix.osl),
        concurrency=float(BATCH),
    )
    pool = PoolSection(
        name="main",
        model=ModelSection(
            name=MODEL,
            source=MODEL,
            params=model.params,
            weight_bytes=model.weight_bytes,
            max_context=ROOM,
        ),
        layout=layout,
        replicas=ReplicaBounds(minimum=1, initial=8, maximum=MOST),
        expected=expectation(found, 0, Slo()),
    )
    return Plan(
        cluster=ClusterSection(spec=CLUSTER, device="h100", nodes=12, devices_per_node=8),
        workload=WorkloadSection(isl=mix.isl, osl=mix.osl),
        slo=SloSection(ttft_s=SLO.ttft_s, tpot_s=SLO.tpot_s),
        pools=(pool,),
    )


def run(case: Case, requests: Sequence[TraceRequest], counting: Counting, target: float) -> Row:
    """Simulate one case under one way of counting."""
    plan = plan_for(case.planned)
    group = parse_cluster(CLUSTER).groups[0]
    (of,) = pool_setups(plan, models=partial(planned_model, source="plan"), group=group)
    of = slowed(of, case.slow)
    driver = Steered(
        controlling(plan, of, counting, target=target),
        contexts={"main": ROOM},
        output_cap=ROOM,  # tiers cap no output: it would be another comparison
    )
    rules = GatewayRules(
        expected_output=case.planned.osl, max_queued=10**6, queue_wait_s=1e9, vip_slots=0
    )
    setup = Setup(pools=(of,), gateway=rules, slo=SLO)
    outcome = Simulation(setup, driver=driver).run(requests)
    return Row(
        served=case.served,
        planned=case.planned.name,
        slow=case.slow,
        counting=counting.name,
        target=target,
        requests=len(requests),
        attainment=outcome.attainment,
        gpu_hours=outcome.device_hours,
        replicas=outcome.replicas["main"][1],
        delivered=driver.gauges()["main measured/planned"],
    )


def slowed(of: PoolSetup, factor: float) -> PoolSetup:
    """The pool whose engines are so much slower than planned."""
    return replace(of, spec=replace(of.spec, times=Slowed(of.spec.times, factor)))


def controlling(
    plan: Plan, of: PoolSetup, counting: Counting, *, target: float
) -> ControllerParams:
    """The live controller of the plan, counting as told."""
    section = SteeringSection(
        cold_start_s=of.spec.start_s, target_utilisation=target, down_utilisation=0.75 * target
    )
    made = controller_params(plan, section)
    return replace(
        made,
        scaling=replace(made.scaling, policy=counting.policy),
        # The slack is `target`, and nothing but the counting differs.
        forecast=ForecastParams(method=LAST_VALUE),
        headroom=HeadroomParams(method=SHARE),
        delivery=counting.delivery,
    )


def conversation(folder: Path) -> Iterable[TraceRequest]:
    """The conversation trace."""
    return sample(open_trace(folder / CONV), RATE, seed=0)


def code(folder: Path) -> Iterable[TraceRequest]:
    """The code trace; it comes in bursts."""
    return sample(open_trace(folder / CODE), RATE, seed=0)


def reasoning(folder: Path) -> Iterable[TraceRequest]:
    """The reasoning trace: rates and means of ten minutes, lengths drawn around them."""
    return open_trace(folder / REASONING, windows=WindowOptions(rate_factor=0.35))


def changing(folder: Path) -> Iterable[TraceRequest]:
    """Conversations; in every other `PHASE_S` with the lengths of the code trace, one by one."""
    lengths = cycle(open_trace(folder / CODE))
    for request in conversation(folder):
        if request.arrival_s % (2 * PHASE_S) < PHASE_S:
            yield request
        else:
            other = next(lengths)
            yield request._replace(
                prompt_tokens=other.prompt_tokens, output_tokens=other.output_tokens
            )


SERVED: dict[str, Callable[[Path], Iterable[TraceRequest]]] = {
    "conversation": conversation,
    "code": code,
    "reasoning": reasoning,
    "changing": changing,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="ten minutes, a case of each kind")
    parser.add_argument("--folder", type=Path, default=TRACES, help="of the public traces")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    if not (args.folder / CONV).is_file():
        parser.error(f"the public traces are not at hand ({args.folder}); pass --folder")
    rows = []
    for title, cases in (("mixes", MIXES), ("wrong plans", WRONG)):
        for case in islice(cases, 1 if args.quick else None):
            requests = list(cut(SERVED[case.served](args.folder), start_s=0.0, end_s=LASTS_S))
            slow = "" if case.slow == 1.0 else f", steps take {case.slow:g} x as long"
            print(
                f"\n{title}: {case.served} on a plan for {case.planned.name}{slow}, "
                f"{len(requests):,} requests"
            )
            heads = f"{'target':>8}{'in SLO':>9}{'GPU h':>9}{'replicas':>10}"
            print(f"{'':21}{heads}{'measured/planned':>18}")
            for target in islice(case.targets, 1 if args.quick else None):
                for counting in COUNTINGS:
                    row = run(case, requests, counting, target)
                    rows.append(row)
                    print(
                        f"  {row.counting:19}{row.target:8.2f}{row.attainment:9.2%}"
                        f"{row.gpu_hours:9.1f}{row.replicas:10.2f}{row.delivered:18.2f}",
                        flush=True,
                    )
    if args.json:
        content = json.dumps([asdict(row) for row in rows], indent=2)
        args.json.write_text(content + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
