"""What does each way of autoscaling deliver, and what does it cost?

    python -m bench.autoscaling [--quick] [--json FILE] [--folder TRACES] [--only NAME …]

Simulated pools of Llama-3.1-70B, by who decides the number of replicas:

- clairvoyant: knows every arrival; the cheapest schedule found that keeps 99 % within the SLO;
- rate known: told each of ServeGen's rates when it begins, the least multiple of it that does;
- ours: the live controller with its defaults, without learned headroom, with last values, and with
  each of its other forecasters;
- Serve: Ray Serve's default policy, its own code; once with its defaults and once with
  `target_ongoing_requests` swept until it costs the GPU-hours of ours;
- tokens, reactive: AIBrix's rule on the tokens in flight;
- Dynamo-like: ARIMA on requests, prompt and output lengths every 180 s, replicas from the
  engine's profile (left out where pmdarima is not installed).

The traffic is in `bench/autoscaling_parts/cases.py`, each policy in a module beside it. Attainment
is of all requests that came: refused, given up and unfinished ones have missed. GPU-hours count
from when a replica is asked for. --quick: ten minutes of each trace, half a day of ServeGen.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from autoscaler.forecast import LAST_VALUE, methods, prepare
from autoscaler.headroom import SHARE
from bench.autoscaling_parts.cases import CASES, TRACES, Case
from bench.autoscaling_parts.clairvoyant import clairvoyant
from bench.autoscaling_parts.dynamo_planner import DynamoPlanner, EngineRate
from bench.autoscaling_parts.fluid_world import FluidWorld
from bench.autoscaling_parts.known_rate import cheapest_known_rate
from bench.autoscaling_parts.ours import ours, params_of
from bench.autoscaling_parts.profile import engine_rate
from bench.autoscaling_parts.request_world import RequestWorld
from bench.autoscaling_parts.serve_policy import ServePolicy
from bench.autoscaling_parts.token_policy import TokenPolicy
from bench.autoscaling_parts.world import Bench, Run
from cluster.routing import predicted_tokens

_SWEEP = 7  # bisections for equal GPU-hours
_NEAR = 0.01


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. `hours_over`: GPU-hours over the clairvoyant schedule's."""

    case: str
    policy: str
    run: Run
    hours_over: float


def policies(case: Case) -> Iterator[tuple[str, Run]]:
    """Everyone's run but the clairvoyant's."""
    world = case.world
    if isinstance(world, FluidWorld):
        multiple, known = cheapest_known_rate(world)
        yield f"rate known, x {multiple:.2f}", known
    params = params_of(world, held_tokens=case.held_tokens, tick_s=case.tick_s)
    mine = world.run(ours(params))
    yield f"ours ({params.forecast.method}, {params.headroom.method})", mine
    shared = replace(params, headroom=replace(params.headroom, method=SHARE))
    for name in (params.forecast.method, LAST_VALUE):
        yield f"ours, {name}, {SHARE}", world.run(ours(shared, forecaster=name))
    for name in methods():
        prepare(name)
        if name != params.forecast.method:
            yield f"ours, {name}", world.run(ours(params, forecaster=name))
    yield "Serve, defaults", world.run(ServePolicy(most=world.most))
    target, run = equal_hours(
        lambda target: world.run(ServePolicy(most=world.most, target=target)), mine.gpu_hours
    )
    yield f"Serve, {target:.3g} ongoing", run
    yield "tokens, reactive", world.run(TokenPolicy(world.sustained))
    if importlib.util.find_spec("pmdarima") is None:
        print("  Dynamo-like: left out, pmdarima is not installed")
    else:
        yield "Dynamo-like", world.run(DynamoPlanner(profile(world)))


def equal_hours(run: Callable[[float], Run], hours: float) -> tuple[float, Run]:
    """The ongoing requests a replica with which Serve's policy costs nearest to `hours`."""
    low, high = 0.25, 1024.0
    best: tuple[float, Run] | None = None
    for _ in range(_SWEEP):
        target = (low * high) ** 0.5
        found = run(target)
        if best is None or abs(found.gpu_hours - hours) < abs(best[1].gpu_hours - hours):
            best = target, found
        if abs(found.gpu_hours / hours - 1.0) < _NEAR:
            break
        if found.gpu_hours > hours:
            low = target
        else:
            high = target
    assert best is not None
    return best


def profile(world: Bench) -> EngineRate:
    """What Dynamo's planner is told one engine serves."""
    if isinstance(world, RequestWorld):
        lengths = [(one.prompt_tokens, one.output_tokens) for one in world.requests]
        prompt, output = (sum(of) / len(lengths) for of in zip(*lengths, strict=True))
        around = (0.25, 0.5, 1.0, 2.0, 4.0)
        return engine_rate(
            world.pool,
            world.slo,
            prompts=[round(prompt * factor) for factor in around],
            outputs=[max(2, round(output * factor)) for factor in around],
        )
    assert isinstance(world, FluidWorld)
    carried = world.sustained.tokens_per_s
    return lambda prompt, output: (
        carried / max(1.0, predicted_tokens(prompt_tokens=round(prompt), output_tokens=output))
    )


def table(case: Case) -> Iterator[Row]:
    """A case's rows, printed as they come."""
    world = case.world
    schedule, best = clairvoyant(world)
    carried = world.sustained
    print(
        f"\n{case.name}: {best.duration_s / 3600.0:.1f} h, a replica sustains "
        f"{carried.requests_per_s:.2f} requests/s ({carried.tokens_per_s:,.0f} tokens/s), starts "
        f"in {world.start_s:.0f} s; {min(schedule.replicas)} to {max(schedule.replicas)} needed"
    )
    print(f"  {'':30}{'in SLO':>9}{'GPU-hours':>11}{'of best':>9}{'changes/h':>11}")

    def row(policy: str, run: Run) -> Row:
        made = Row(
            case=case.name, policy=policy, run=run, hours_over=run.gpu_hours / best.gpu_hours
        )
        print(
            f"  {policy:30}{run.attainment:9.2%}{run.gpu_hours:11.1f}{made.hours_over:8.2f}x"
            f"{run.changes_per_hour:11.1f}",
            flush=True,
        )
        return made

    yield row("clairvoyant", best)
    for policy, run in policies(case):
        yield row(policy, run)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="ten minutes of each trace")
    parser.add_argument("--folder", type=Path, default=TRACES, help="of the public traces")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="traffic")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    if not arguments.folder.is_dir():
        print(f"the public traces are not at hand ({arguments.folder}): nothing to do")
        return
    rows = [
        row
        for name in arguments.only
        for row in table(CASES[name](arguments.folder, quick=arguments.quick))
    ]
    if arguments.json:
        content = json.dumps([asdict(row) for row in rows], indent=2)
        arguments.json.write_text(content + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
