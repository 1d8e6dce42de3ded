"""How fast is the trace simulator, and how does its cost grow with the number of requests?

    python -m bench.simulator [--quick] [--json FILE] [--trace FILE] [--peer PYTHON]

Llama-3.1-70B on replicas of 4 H100 (TP4), behind the gateway's books, with the shipped calibration:

- the trace's hour on 8 replicas: routing alone, and under the live controller (1 s ticks);
- the same at five and ten times the rate;
- the curve: 10^4 … 10^6 requests of the trace repeated end to end, on 8 replicas, autoscaled;
  memory is the peak of the process after each, seconds per request should not grow.

Seconds are of the simulation after one warm-up run, the least of three (one for the curve); each is
CPU time of this process, as the cores may be shared, with wall time beside it. --peer is the
interpreter of an environment with aisimulate 0.13, which replays the same hour (round robin, no
controller) in the same run. --quick leaves out the curve beyond 10^5.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from autoscaler.params import ControllerParams, PoolParams
from autoscaler.simulated import Steered
from bench.peers.aisimulate import replay as peer_replay
from cluster.costmodel.calibration_file import default_coefficients
from cluster.costmodel.estimate import PLAIN
from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.layout import Layout
from cluster.model.workload import Slo
from cluster.pool_ledger import ReplicaLimits
from cluster.sim.driver import Driver
from cluster.sim.from_plan import ReplicaSource, replica_spec
from cluster.sim.record import Outcome
from cluster.sim.setup import GatewayRules, PoolSetup, Setup
from cluster.sim.simulation import Simulation
from cluster.traces.files import open_trace
from cluster.traces.request import TraceRequest
from cluster.traces.scaling import repeat, scale_rate

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
MODEL, CLUSTER, TP, REPLICAS = "llama-3.1-70b", "4x8xH100", 4, 8
CHUNK, SEQUENCES, KV_TOKENS = 8192, 256, 640_000
SLO = Slo(ttft_s=2.0, tpot_s=0.05)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One timing. `per_request_us` of CPU time; `peak_bytes` of the process so far."""

    what: str
    requests: int
    cpu_s: float
    wall_s: float
    per_request_us: float
    peak_bytes: int
    attainment: float
    simulated_s: float


def pool() -> PoolSetup:
    """Eight replicas."""
    source = ReplicaSource(
        model=get_model(MODEL),
        group=parse_cluster(CLUSTER).groups[0],
        serving=PLAIN,
        coefficients=default_coefficients(),
    )
    layout = Layout(tp=TP, moe_tp=TP, max_num_seqs=SEQUENCES, max_num_batched_tokens=CHUNK)
    spec = replica_spec(source, layout, kv_tokens=KV_TOKENS, weight_bytes=source.model.weight_bytes)
    limits = ReplicaLimits(max_requests=SEQUENCES, max_tokens=float(KV_TOKENS))
    return PoolSetup(name="main", spec=spec, replicas=REPLICAS, limits=limits)


def controller(of: PoolSetup) -> ControllerParams:
    """The live controller's defaults, one tick a second."""
    held = float(KV_TOKENS)
    return ControllerParams(
        tick_s=1.0,
        pools=(
            PoolParams(
                pool="main",
                minimum=1,
                maximum=REPLICAS,
                capacity_tokens_per_s=held / 40.0,
                capacity_in_flight_tokens=held,
                cold_start_s=of.spec.start_s,
            ),
        ),
    )


def timed(
    what: str,
    made: PoolSetup,
    requests: Callable[[], Iterable[TraceRequest]],
    driver: Callable[[], Driver | None],
    *,
    repeats: int,
) -> Figure:
    """The least CPU time of `repeats` runs."""
    best: tuple[float, float, Outcome] | None = None
    setup = Setup(
        pools=(made,),
        gateway=GatewayRules(expected_output=211, length_predictor="formula"),
        slo=SLO,
    )
    for _ in range(repeats):
        cpu, wall = time.process_time(), time.perf_counter()
        outcome = Simulation(setup, driver=driver()).run(requests())
        spent = (time.process_time() - cpu, time.perf_counter() - wall, outcome)
        best = spent if best is None or spent[0] < best[0] else best
    assert best is not None
    cpu_s, wall_s, outcome = best
    figure = Figure(
        what=what,
        requests=outcome.record.arrived,
        cpu_s=cpu_s,
        wall_s=wall_s,
        per_request_us=cpu_s / outcome.record.arrived * 1e6,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        attainment=outcome.attainment,
        simulated_s=outcome.duration_s,
    )
    print(
        f"{what:44}{figure.requests:>10,} requests {cpu_s:8.2f} s CPU {wall_s:8.2f} s wall "
        f"{figure.per_request_us:7.1f} us each {figure.peak_bytes / 1e6:6.0f} MB  "
        f"attainment {figure.attainment:.3f}  {figure.simulated_s / wall_s:,.0f}x real time",
        flush=True,
    )
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="one repeat, the curve to 10^5")
    parser.add_argument(
        "--trace", type=Path, default=DATA / "traces" / "AzureLLMInferenceTrace_conv_2023.csv"
    )
    parser.add_argument("--peer", type=Path, help="python of an environment with aisimulate")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    if not args.trace.is_file():
        parser.error(f"{args.trace} is not a file; pass --trace")
    trace, made = open_trace(args.trace), pool()
    params = controller(made)

    def steered() -> Driver:
        return Steered(params, contexts={"main": 131_072}, output_cap=128)

    repeats = 1 if args.quick else 3
    timed("warm-up", made, lambda: trace, lambda: None, repeats=1)
    figures = [
        timed("the hour, 8 replicas, routing", made, lambda: trace, lambda: None, repeats=repeats),
        timed("the hour, 8 replicas, autoscaled", made, lambda: trace, steered, repeats=repeats),
    ]
    for factor in (5.0, 10.0):
        figures.append(
            timed(
                f"at {factor:.0f} times the rate, autoscaled",
                made,
                lambda factor=factor: scale_rate(trace, factor),  # type: ignore[misc]
                steered,
                repeats=repeats,
            )
        )
    known = list(trace)
    powers = (4, 4.5, 5) if args.quick else (4, 4.5, 5, 5.5, 6)
    for power in powers:
        count = round(10**power)
        figures.append(
            timed(
                f"curve: {count:,}",
                made,
                lambda count=count: repeat(known, count),  # type: ignore[misc]
                steered,
                repeats=1,
            )
        )
    report: dict[str, object] = {"figures": [asdict(figure) for figure in figures]}
    if args.peer:
        with tempfile.TemporaryDirectory() as folder:
            peer = peer_replay(args.peer, args.trace, REPLICAS, Path(folder))
        ours = figures[1]
        print(
            f"aisimulate {peer.version}, the same hour: {peer.tool_s or 0.0:.1f} s in the tool, "
            f"{peer.cpu_s:.1f} s CPU with its start, {peer.peak_bytes / 1e6:.0f} MB; ours, "
            f"autoscaled, {ours.cpu_s:.2f} s: {(peer.tool_s or peer.cpu_s) / ours.cpu_s:.1f} times "
            "faster than the tool alone"
        )
        report["aisimulate"] = asdict(peer)
    if args.json:
        args.json.write_text(json.dumps(report, indent=2, default=float) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
