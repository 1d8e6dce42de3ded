"""Do better predictions of output lengths pay? The traces through the simulator.

    python -m bench.lengths_routing [--quick] [--json FILE] [--folder TRACES]

Llama-3.1-70B on replicas of 4 H100, by what the gateway believes of a request's output:

- formula, no limit: the plan's usual output, which is the trace's mean;
- formula, limit 4 x: every caller sets max_tokens to four times the mean, as one does who wants no
  answer cut;
- learned, limit 4 x: the same callers;
- oracle: every length is known.

*Dispatch*: a fixed number of replicas, at a rate near what they sustain. They have the KV cache of
these GPUs, or one of 100,000 tokens (smaller GPUs, heavier caches). "uneven" is the tokens of the
most loaded replica over the mean, of what arrives in ten seconds, mean over the trace.
*Autoscaling*: the live controller between 1 and 12 replicas, told what one replica sustains.

Without the public traces (../shared/data) made-up requests take their place, and it says so.
The reasoning trace tells rates and means of ten minutes; lengths are drawn around them, so that
nothing can be learned of one but the mean. --quick: ten minutes of the first trace.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from autoscaler.params import ControllerParams, PoolParams
from autoscaler.simulated import Steered
from bench.length_rivals import ROOM, made_up
from bench.simulator import pool
from cluster.lengths.features import LengthFeatures
from cluster.model.workload import Slo
from cluster.pool_ledger import ReplicaLimits
from cluster.routing import predicted_tokens
from cluster.sim.front import asked_of
from cluster.sim.record import Finished
from cluster.sim.setup import GatewayRules, PoolSetup, Setup
from cluster.sim.simulation import Knows, Simulation
from cluster.traces.files import open_trace
from cluster.traces.options import WindowOptions
from cluster.traces.request import TraceRequest
from cluster.traces.scaling import cut, scale_rate

TRACES = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "traces"
CONV, CODE = "AzureLLMInferenceTrace_conv_2023.csv", "AzureLLMInferenceTrace_code_2023.csv"
MOONCAKE = "mooncake_conversation_trace.jsonl"
REASONING = "servegen_reason_deepseek-r1_10min.csv"
SLO = Slo(ttft_s=2.0, tpot_s=0.1)
SEQUENCES, ROOMY, TIGHT = 256, 640_000, 100_000
TIMES = 4  # of the mean answer: the limit that callers set
WINDOW_S = 10.0
HOUR_S = 3600.0
MOST = 12  # replicas


@dataclass(frozen=True, kw_only=True)
class Case:
    """Traffic for so many replicas. `kv_tokens`: of each."""

    trace: str
    rate: float
    replicas: int
    kv_tokens: int


DISPATCH = (
    Case(trace=CONV, rate=3.0, replicas=3, kv_tokens=ROOMY),
    Case(trace=CONV, rate=3.0, replicas=3, kv_tokens=TIGHT),
    Case(trace=CODE, rate=1.0, replicas=3, kv_tokens=ROOMY),
    Case(trace=CODE, rate=1.0, replicas=3, kv_tokens=TIGHT),
    Case(trace=MOONCAKE, rate=0.7, replicas=6, kv_tokens=ROOMY),
    Case(trace=REASONING, rate=0.35, replicas=3, kv_tokens=ROOMY),
)
AUTOSCALING = (
    Case(trace=CONV, rate=4.0, replicas=4, kv_tokens=ROOMY),
    Case(trace=CONV, rate=4.0, replicas=4, kv_tokens=TIGHT),
    Case(trace=CODE, rate=2.0, replicas=4, kv_tokens=ROOMY),
)


@dataclass(frozen=True, kw_only=True)
class Believer:
    """A gateway: which predictor, and what it is told beside the prompt (see `knows`)."""

    name: str
    predictor: str
    tells: str


BELIEVERS = (
    Believer(name="formula, no limit", predictor="formula", tells="nothing"),
    Believer(name=f"formula, limit {TIMES} x", predictor="formula", tells="limit"),
    Believer(name=f"learned, limit {TIMES} x", predictor="learned", tells="limit"),
    Believer(name="oracle", predictor="formula", tells="output"),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run. Seconds; `device_hours` of all replicas."""

    trace: str
    what: str
    kv_tokens: int
    believer: str
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p99_s: float
    attainment: float
    uneven: float
    device_hours: float


def run(case: Case, requests: Sequence[TraceRequest], believer: Believer, *, steered: bool) -> Row:
    """Simulate one gateway's beliefs."""
    outputs = np.array([request.output_tokens for request in requests])
    mean = float(outputs.mean())
    of = replica(case)
    driver = None
    if steered:
        prompts = np.array([request.prompt_tokens for request in requests])
        driver = Steered(
            controller(of, requests, prompt=float(prompts.mean()), output=mean),
            contexts={"main": ROOM},
            output_cap=ROOM,  # tiers cap no output: it would be another comparison
        )
    setup = Setup(pools=(of,), gateway=rules(mean, believer.predictor), slo=SLO)
    simulation = Simulation(setup, driver=driver, keep=True, knows=knows(believer, mean))
    outcome = simulation.run(requests)
    done = simulation.record.requests
    assert done
    ttft = np.array([one.ttft_s for one in done])
    return Row(
        trace=case.trace,
        what="autoscaling" if steered else "dispatch",
        kv_tokens=case.kv_tokens,
        believer=believer.name,
        ttft_p50_s=float(np.quantile(ttft, 0.5)),
        ttft_p99_s=float(np.quantile(ttft, 0.99)),
        tpot_p99_s=float(np.quantile([one.tpot_s for one in done if one.output_tokens > 1], 0.99)),
        attainment=outcome.attainment,
        uneven=uneven(done, case.replicas),
        device_hours=outcome.device_hours,
    )


def rules(usual: float, predictor: str) -> GatewayRules:
    """The live gateway's: places at once."""
    return GatewayRules(
        expected_output=round(usual),
        length_predictor=predictor,
        batch_wait_s=0.0,
        max_queued=10**6,
        queue_wait_s=1e9,
    )


def knows(believer: Believer, mean: float) -> Knows:
    """What the gateway is told. The oracle's callers set their limits to what they will get."""

    def told(request: TraceRequest, *, limit: int | None, room: int) -> LengthFeatures:
        asked = asked_of(request, limit=limit, room=room)
        if believer.tells == "output":
            return asked._replace(limit=request.output_tokens)
        if believer.tells == "limit":
            return asked._replace(limit=max(round(TIMES * mean), request.output_tokens))
        return asked

    return told


def replica(case: Case) -> PoolSetup:
    """Replicas of 4 H100 with the case's KV cache, and what a gateway gives each."""
    made = pool()
    return replace(
        made,
        replicas=case.replicas,
        spec=replace(made.spec, max_num_seqs=SEQUENCES, kv_blocks=case.kv_tokens // 16),
        limits=ReplicaLimits(max_requests=SEQUENCES, max_tokens=float(case.kv_tokens)),
    )


def controller(
    of: PoolSetup, requests: Sequence[TraceRequest], *, prompt: float, output: float
) -> ControllerParams:
    """The live defaults, for a replica that sustains what one alone does within the SLO."""
    each = predicted_tokens(prompt_tokens=round(prompt), output_tokens=output)
    held = min(SEQUENCES * each, of.limits.max_tokens)
    return ControllerParams(
        tick_s=1.0,
        pools=(
            PoolParams(
                pool="main",
                minimum=1,
                maximum=MOST,
                capacity_tokens_per_s=sustained_rps(of, requests, output=output) * each,
                capacity_in_flight_tokens=held,
                cold_start_s=of.spec.start_s,
            ),
        ),
    )


def sustained_rps(of: PoolSetup, requests: Sequence[TraceRequest], *, output: float) -> float:
    """Requests/s at even distances of which one replica serves 95 % within the SLO."""
    some = requests[:3000]
    setup = Setup(pools=(replace(of, replicas=1),), gateway=rules(output, "formula"), slo=SLO)
    low, high = 0.0, 32.0
    for _ in range(7):
        rate = (low + high) / 2
        evenly = [one._replace(arrival_s=index / rate) for index, one in enumerate(some)]
        if Simulation(setup).run(evenly).attainment >= 0.95:
            low = rate
        else:
            high = rate
    return max(low, 0.25)


def uneven(done: Sequence[Finished], replicas: int) -> float:
    """See above."""
    names = {name: index for index, name in enumerate(sorted({one.replica_id for one in done}))}
    windows = int(max(one.arrival_s for one in done) / WINDOW_S) + 1
    given = np.zeros((windows, max(replicas, len(names))))
    for one in done:
        window = int(one.arrival_s / WINDOW_S)
        given[window, names[one.replica_id]] += one.prompt_tokens + one.output_tokens
    busy = given[given.sum(axis=1) > 0.0]
    return float((busy.max(axis=1) / busy.mean(axis=1)).mean())


def requests_of(case: Case, folder: Path, *, quick: bool) -> tuple[str, list[TraceRequest]]:
    """The case's traffic, and its name."""
    path = folder / case.trace
    if path.is_file():
        drawn = case.trace.startswith("servegen")
        windows = WindowOptions(rate_factor=case.rate if drawn else 1.0)
        trace = open_trace(path, windows=windows)
        short = cut(trace, start_s=0.0, end_s=600.0 if quick else HOUR_S)
        return case.trace, list(short if drawn else scale_rate(short, case.rate))
    known = made_up(6_000 if quick else 40_000, rate=12.0 * case.rate)
    return "made up", [
        TraceRequest(one.arrival_s, one.asked.prompt_tokens, one.output_tokens) for one in known
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="ten minutes of the first trace")
    parser.add_argument("--folder", type=Path, default=TRACES, help="of the public traces")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    rows = []
    for title, cases in (("dispatch", DISPATCH), ("autoscaling", AUTOSCALING)):
        for case in cases[:1] if args.quick else cases:
            name, requests = requests_of(case, args.folder, quick=args.quick)
            if name != case.trace:
                print(f"{case.trace} is not at hand ({args.folder}): made-up requests instead")
            steered = title == "autoscaling"
            size = f"1 to {MOST}" if steered else f"{case.replicas}"
            print(
                f"\n{title}: {name} at {case.rate:g} times its rate, {len(requests):,} requests, "
                f"{size} replicas, {case.kv_tokens:,} tokens of KV cache each"
            )
            print(
                f"{'':22}{'TTFT p50':>10}{'p99':>9}{'TPOT p99':>10}{'in SLO':>9}{'uneven':>8}"
                f"{'device h':>10}"
            )
            for believer in BELIEVERS:
                row = replace(run(case, requests, believer, steered=steered), trace=name)
                rows.append(row)
                print(
                    f"  {row.believer:20}{row.ttft_p50_s:9.2f}s{row.ttft_p99_s:8.2f}s"
                    f"{row.tpot_p99_s * 1e3:8.0f}ms{row.attainment:9.1%}{row.uneven:8.2f}"
                    f"{row.device_hours:10.1f}",
                    flush=True,
                )
    if args.json:
        content = json.dumps([asdict(row) for row in rows], indent=2)
        args.json.write_text(content + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
