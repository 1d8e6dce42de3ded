"""Does the simulator predict what a live vLLM engine does with bursty traffic? Side by side.

    python -m bench.live_replay [--quick] [--json FILE] [--trace FILE] [--minutes M] [--repeats N]
                                [--loads 0.35,0.6,0.85] [--live FILE]

One vLLM engine (the bundled model, one core) is started. Its steps are measured as by `shardwise
calibrate --live`; that alone is what the simulator is given. Then, load by load, a window of the
Azure conversation trace, lengths divided by 8 and thinned to the load, is replayed against the
engine in real time, and simulated. A load is the share of the rate that the simulator says the
engine sustains with requests always waiting. Throughput is output tokens over the time from the
first arrival to the last token.

Replays are repeated, loads in turns, as the machine's speed changes under the measurement: the
spread (largest over smallest - 1) of the repeats stands beside the error against their median. The
steps are measured again at the end, and the drift of the decode steps is printed: no simulator that
knew the start can be closer than that. --quick: one minute, one repeat, loads 0.4 and 0.8.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster.calibration.live_file import LiveFile, read_live
from cluster.pool_ledger import ReplicaLimits
from cluster.sim.measured_times import MeasuredTimes
from cluster.sim.setup import GatewayRules, PoolSetup, Setup
from cluster.sim.simulation import Simulation
from cluster.sim.spec import ReplicaSpec
from cluster.traces.files import open_trace
from cluster.traces.request import TraceRequest
from cluster.traces.scaling import cut, sample, scale_lengths
from serving.bundled import HEAVY, bundled_path
from serving.engine.live_engine import LiveEngine, LiveSettings
from serving.engine.live_grid import full_cells, quick_cells
from serving.engine.live_measure import limits_of, live_file, measure
from serving.engine.live_replay import replay

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
SHORTER = 1.0 / 8.0  # of lengths, so that the model's context and the machine's speed fit the trace
START_S = 600.0  # of the window in the trace
MODEL_LEN, SEQUENCES, CHUNK = 2048, 16, 512
NO_GATEWAY = GatewayRules(batch_wait_s=0.0, max_queued=10**6, queue_wait_s=1e9)
BUDGET_S, QUICK_S = 240.0, 60.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What callers saw: medians in seconds, output tokens/s."""

    tokens_per_s: float
    tpot_s: float
    ttft_s: float
    ttft_p90_s: float
    requests: int


def simulated(file: LiveFile, requests: Sequence[TraceRequest]) -> Seen:
    """The simulator's answer."""
    simulation = Simulation(_setup(file), keep=True)
    simulation.run(requests)
    done = simulation.record.requests
    assert done is not None
    return seen(
        [one.ttft_s for one in done],
        [one.tpot_s for one in done if one.output_tokens > 1],
        sum(one.output_tokens for one in done),
        max(one.arrival_s + one.e2e_s for one in done) - requests[0].arrival_s,
    )


def sustained_rps(file: LiveFile, requests: Sequence[TraceRequest]) -> float:
    """Requests/s with twice as many in flight as the engine batches, by the simulator."""
    outcome = Simulation(_setup(file)).run_closed(requests, concurrency=2 * SEQUENCES)
    return outcome.record.completed / outcome.duration_s


def _setup(file: LiveFile) -> Setup:
    said = file.provenance
    spec = ReplicaSpec(
        times=MeasuredTimes.of(file),
        max_num_seqs=said.max_num_seqs,
        chunk=said.chunk,
        kv_blocks=said.kv_tokens // 16,
        prefix_caching=False,
        join_steps=int(said.async_scheduling),
    )
    limits = ReplicaLimits(max_requests=10**6, max_tokens=1e12)
    pool = PoolSetup(name="main", spec=spec, replicas=1, limits=limits)
    return Setup(pools=(pool,), gateway=NO_GATEWAY)


def seen(ttft: list[float], tpot: list[float], tokens: int, seconds: float) -> Seen:
    """Medians and the rate."""
    return Seen(
        tokens_per_s=tokens / seconds,
        tpot_s=statistics.median(tpot),
        ttft_s=statistics.median(ttft),
        ttft_p90_s=statistics.quantiles(ttft, n=10)[-1],
        requests=len(ttft),
    )


async def replayed(engine: LiveEngine, requests: Sequence[TraceRequest]) -> Seen:
    """The engine's answer."""
    records = await replay(engine, requests)
    return seen(
        [one.ttft_s for one in records],
        [one.tpot_s for one in records if one.output_tokens > 1],
        sum(one.output_tokens for one in records),
        max(one.finish_s for one in records) - requests[0].arrival_s,
    )


def window(path: Path, *, minutes: float, share: float) -> list[TraceRequest]:
    """The trace's window, shortened and thinned, from time 0."""
    scaled = scale_lengths(
        cut(open_trace(path), start_s=START_S, end_s=START_S + 60.0 * minutes),
        prompt=SHORTER,
        output=SHORTER,
        max_prompt=MODEL_LEN // 2,
        max_output=MODEL_LEN // 4,
    )
    return list(sample(scaled, share, seed=1))


async def compare(args: argparse.Namespace, loads: Sequence[float]) -> dict[str, object]:
    """Measure, then replay and simulate every load."""
    settings = LiveSettings(
        model=bundled_path(HEAVY),
        max_num_seqs=SEQUENCES,
        max_model_len=MODEL_LEN,
        chunk=CHUNK,
    )
    async with LiveEngine.start(settings) as engine:
        file = read_live(args.live) if args.live else await measured(engine, quick=args.quick)
        whole = window(args.trace, minutes=args.minutes, share=1.0)
        offered = len(whole) / (60.0 * args.minutes)
        limit = sustained_rps(file, whole)
        print(
            f"the engine sustains {limit:.2f} requests/s by the simulator; the window has "
            f"{offered:.2f}/s of {sum(r.prompt_tokens for r in whole) / len(whole):.0f} + "
            f"{sum(r.output_tokens for r in whole) / len(whole):.0f} tokens",
            flush=True,
        )
        traces = {
            load: window(args.trace, minutes=args.minutes, share=load * limit / offered)
            for load in loads
        }
        live: dict[float, list[Seen]] = {load: [] for load in loads}
        for _ in range(args.repeats):
            for load in loads:
                live[load].append(await replayed(engine, traces[load]))
                print(f"  load {load}: {live[load][-1]}", flush=True)
        after = await measured(engine, quick=True)
    drift = statistics.median(
        later / first
        for first, later in zip(*(_decode_times(one, file) for one in (file, after)), strict=True)
    )
    print(f"decode steps at the end over those at the start: {drift:.3f}")
    rows = [row(load, simulated(file, traces[load]), live[load]) for load in loads]
    return {"drift": drift, "sustained_rps": limit, "loads": rows}


async def measured(engine: LiveEngine, *, quick: bool) -> LiveFile:
    """The engine's steps, as `shardwise calibrate --live` measures them."""
    limits, begin = limits_of(engine), time.monotonic()
    cells = quick_cells(limits) if quick else full_cells(limits)
    samples = await measure(engine, cells, budget_s=QUICK_S if quick else BUDGET_S, tell=_quiet)
    date = time.strftime("%Y-%m-%d")
    return live_file(engine, samples, date=date, measured_s=time.monotonic() - begin)


def _quiet(text: str) -> None:
    """Progress, which nobody here looks at."""
    del text


def _decode_times(file: LiveFile, like: LiveFile) -> list[float]:
    times = MeasuredTimes.of(file)
    most = like.provenance.max_num_seqs
    return [times.decode_s(n, 64.0 * n, n) for n in (1, most // 4, most // 2, most)]


def row(load: float, predicted: Seen, live: Sequence[Seen]) -> dict[str, object]:
    """Print and return predicted beside measured."""
    made: dict[str, object] = {"load": load, "requests": predicted.requests}
    print(f"load {load:.2f}, {predicted.requests} requests, {len(live)} replay(s)")
    for name, unit, scale in (
        ("tokens_per_s", "tokens/s", 1.0),
        ("tpot_s", "ms", 1e3),
        ("ttft_s", "ms", 1e3),
        ("ttft_p90_s", "ms", 1e3),
    ):
        values = [getattr(one, name) for one in live]
        middle, guess = statistics.median(values), getattr(predicted, name)
        spread = max(values) / min(values) - 1.0
        made[name] = {
            "predicted": guess,
            "measured": values,
            "error": guess / middle - 1.0,
            "spread": spread,
        }
        print(
            f"  {name:14}predicted {guess * scale:9.1f} {unit:9}measured {middle * scale:9.1f}  "
            f"error {guess / middle - 1.0:+6.1%}  spread of repeats {spread:5.1%}"
        )
    made["seen"] = [asdict(one) for one in live]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="one minute, one repeat, two loads")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--loads", default="0.35,0.6,0.85", help="shares of what is sustained")
    parser.add_argument("--live", type=Path, help="a file of `shardwise calibrate --live`")
    parser.add_argument(
        "--trace", type=Path, default=DATA / "traces" / "AzureLLMInferenceTrace_conv_2023.csv"
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    if not args.trace.is_file():
        parser.error(f"{args.trace} is not a file; pass --trace")
    loads = [float(part) for part in args.loads.split(",")]
    if args.quick:
        args.minutes, args.repeats, loads = 1.0, 1, [0.4, 0.8]
    report = asyncio.run(compare(args, loads))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
