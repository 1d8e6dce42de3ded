"""Is it worth sending a prompt where its beginning is cached? `python -m bench.prefix_affinity`.

The simulator, eight replicas of Llama-3.1-70B on four H100 each, with the gateway's own routing:

    mooncake   the conversation trace of ../shared/data: turns share the conversation before them
    one prompt half of all requests begin with the same 1,920 tokens, the rest with one of four such

against the same routing without the caches, the fewest requests, and worths of a cached token (in
tokens of load) from 4 to 64. `fullest`: requests of the busiest replica over the mean. A worth is
good if more is cached and nothing piles up.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np

from bench.simulator import DATA, SLO, pool
from cluster import routing
from cluster.sim.setup import GatewayRules, Setup
from cluster.sim.simulation import Simulation
from cluster.traces.files import open_trace
from cluster.traces.request import TraceRequest

SHARED_TOKENS, BLOCK = 1920, 64


def mooncake(count: int) -> list[TraceRequest]:
    """The first requests of the trace, empty if it is not there."""
    path = DATA / "traces" / "mooncake_conversation_trace.jsonl"
    return list(itertools.islice(open_trace(path), count)) if path.is_file() else []


def one_prompt(count: int, *, rate: float = 30.0) -> list[TraceRequest]:
    """Requests that begin alike."""
    chance = np.random.default_rng(0)
    arrivals = np.cumsum(chance.exponential(1.0 / rate, count))
    which = np.where(chance.random(count) < 0.5, 0, chance.integers(4, size=count))
    outputs = chance.lognormal(5.0, 0.7, count)
    return [
        TraceRequest(
            float(at_s),
            SHARED_TOKENS + 200,
            int(output) + 1,
            blocks=tuple(range(1000 * int(name), 1000 * int(name) + SHARED_TOKENS // BLOCK)),
            block_tokens=BLOCK,
        )
        for at_s, name, output in zip(arrivals, which, outputs, strict=True)
    ]


@contextmanager
def worth(tokens: float) -> Iterator[None]:
    """For a moment, a cached token is worth so many tokens of load."""
    before = routing.CACHED_WORTH
    routing.CACHED_WORTH = tokens
    try:
        yield
    finally:
        routing.CACHED_WORTH = before


def run(requests: list[TraceRequest], rules: GatewayRules) -> dict[str, float]:
    """One simulation."""
    simulation = Simulation(Setup(pools=(pool(),), gateway=rules, slo=SLO), keep=True)
    outcome = simulation.run(requests)
    done = simulation.record.requests
    first_s = np.array([request.ttft_s for request in done])
    counts = Counter(request.replica_id for request in done).values()
    return {
        "ttft_mean_s": float(first_s.mean()),
        "ttft_p99_s": float(np.quantile(first_s, 0.99)),
        "attainment": outcome.attainment,
        "cached": simulation.record.cached_tokens / simulation.record.prompt_tokens,
        "fullest": max(counts) / mean(counts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a quarter of the requests")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    count = 1500 if arguments.quick else 6000
    figures: dict[str, dict[str, dict[str, float]]] = {}
    print(f"{'':26}{'TTFT mean':>10}{'p99':>8}{'in SLO':>9}{'cached':>9}{'fullest':>9}")
    makers: dict[str, Callable[[int], list[TraceRequest]]] = {
        "mooncake": mooncake,
        "one prompt": one_prompt,
    }
    for trace, made in makers.items():
        requests = made(count)
        if not requests:
            print(f"{trace}: left out, {DATA} is not there")
            continue
        caching = GatewayRules(expected_output=211, length_predictor="formula")
        plain = replace(caching, prefix_affinity=False)
        cases = {
            "without the caches": (plain, 0.0),
            "fewest requests": (
                replace(plain, router="least_requests"),
                0.0,
            ),
        } | {f"worth {tokens:g}": (caching, tokens) for tokens in (4.0, 8.0, 16.0, 32.0, 64.0)}
        figures[trace] = {}
        for name, (rules, tokens) in cases.items():
            with worth(tokens):
                figure = figures[trace][name] = run(requests, rules)
            print(
                f"{trace:11}{name:20}{figure['ttft_mean_s']:5.3f}{figure['ttft_p99_s']:8.3f}"
                f"{100 * figure['attainment']:8.1f}%{100 * figure['cached']:8.1f}%"
                f"{figure['fullest']:9.2f}"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
