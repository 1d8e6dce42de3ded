"""Which traffic, on which replicas, within which SLO?

Replicas are Llama-3.1-70B on four A100 (a cache of 400,000 tokens), slow enough that traces of a
few requests a second need many: the code trace as it is, the conversation trace at three times its
rate; Mooncake's long prompts, half as many again, are for four H100 (640,000 tokens). Chunks are of
2,048 tokens. Rates are raised by drawing copies, at random moments of the gap that follows
(`cluster.traces.scaling.sample`), so that time runs as it did. ServeGen's two weeks are played by
the second (`fluid_world`) at half their rate, on replicas of four H100, and the live controller
steps every 5 s there instead of every second, for the bench's own speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from bench.autoscaling_parts.fluid_world import FluidWorld, seconds_of
from bench.autoscaling_parts.request_world import RequestWorld, mean_output, sustained
from bench.autoscaling_parts.world import POOL, Bench, Floats
from cluster.costmodel.calibration_file import default_coefficients
from cluster.costmodel.estimate import PLAIN
from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.layout import Layout
from cluster.model.workload import Slo
from cluster.pool_ledger import ReplicaLimits
from cluster.routing import predicted_tokens
from cluster.sim.from_plan import ReplicaSource, replica_spec
from cluster.sim.setup import PoolSetup
from cluster.traces.files import open_trace
from cluster.traces.options import WindowOptions
from cluster.traces.request import TraceRequest
from cluster.traces.scaling import cut, sample

TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "traces"
CONVERSATION = "AzureLLMInferenceTrace_conv_2023.csv"
CODE = "AzureLLMInferenceTrace_code_2023.csv"
MOONCAKE = "mooncake_conversation_trace.jsonl"
SERVEGEN = "servegen_language_m-large_10min.csv"
MODEL, TP = "llama-3.1-70b", 4
SEQUENCES = 256
CHAT = Slo(ttft_s=3.0, tpot_s=0.2)
LONG = Slo(ttft_s=30.0, tpot_s=0.2)  # 30 s: Mooncake's bound; prompts have 12,000 tokens and more
HOUR_S, DAY_S = 3600.0, 86_400.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """A world with its name, and what the live controller is told.

    `held_tokens`: what a replica holds at most. `tick_s`: between its steps.
    """

    name: str
    world: Bench
    held_tokens: float
    tick_s: float = 1.0


def replica(cluster: str, *, chunk: int, kv_tokens: int) -> PoolSetup:
    """A pool of replicas of four devices of `cluster`."""
    source = ReplicaSource(
        model=get_model(MODEL),
        group=parse_cluster(cluster).groups[0],
        serving=PLAIN,
        coefficients=default_coefficients(),
    )
    layout = Layout(tp=TP, moe_tp=TP, max_num_seqs=SEQUENCES, max_num_batched_tokens=chunk)
    spec = replica_spec(source, layout, kv_tokens=kv_tokens, weight_bytes=source.model.weight_bytes)
    limits = ReplicaLimits(max_requests=SEQUENCES, max_tokens=float(kv_tokens))
    return PoolSetup(name=POOL, spec=spec, replicas=1, limits=limits)


def a100() -> PoolSetup:
    """The slow replicas."""
    return replica("4x8xA100-80GB", chunk=2048, kv_tokens=400_000)


def h100() -> PoolSetup:
    """The fast ones."""
    return replica("4x8xH100", chunk=2048, kv_tokens=640_000)


def by_request(
    name: str,
    requests: Sequence[TraceRequest],
    *,
    pool: PoolSetup,
    slo: Slo,
    window_s: float = 30.0,
) -> Case:
    """A trace against such replicas. It starts with what the first minutes need."""
    carried = sustained(pool, requests, slo)
    usual = mean_output(requests)
    tokens = np.array(
        [predicted_tokens(prompt_tokens=one.prompt_tokens, output_tokens=usual) for one in requests]
    )
    times = np.array([one.arrival_s for one in requests])
    at_first, most = _bounds(np.bincount(times.astype(int), weights=tokens), carried.tokens_per_s)
    world = RequestWorld(
        requests=requests,
        pool=pool,
        slo=slo,
        sustained=carried,
        initial=at_first,
        most=most,
        window_s=window_s,
    )
    each = predicted_tokens(
        prompt_tokens=round(float(np.mean([one.prompt_tokens for one in requests]))),
        output_tokens=usual,
    )
    return Case(name=name, world=world, held_tokens=_held(pool, each))


def conversation(folder: Path, *, quick: bool) -> Case:
    """An hour whose load rises to three times its least, and falls."""
    requests = sample(_open(folder, CONVERSATION, quick=quick), 4.0, seed=0)
    return by_request(
        "Azure conversation x 4", list(requests), pool=a100(), slo=CHAT, window_s=60.0
    )


def code(folder: Path, *, quick: bool) -> Case:
    """An hour of bursts and silences of minutes."""
    requests = _open(folder, CODE, quick=quick)
    return by_request("Azure code", requests, pool=a100(), slo=CHAT)


def mooncake(folder: Path, *, quick: bool) -> Case:
    """An hour of long prompts, evenly."""
    requests = sample(_open(folder, MOONCAKE, quick=quick), 1.5, seed=0)
    return by_request("Mooncake conversation x 1.5", list(requests), pool=h100(), slo=LONG)


def constant(folder: Path, *, quick: bool) -> Case:
    """Poisson arrivals of one rate, lengths of the conversation trace."""
    lengths = list(islice(open_trace(folder / CONVERSATION), 5000))
    rng = np.random.default_rng(0)
    rate, duration_s = 8.0, 600.0 if quick else HOUR_S
    times = np.cumsum(rng.exponential(1.0 / rate, round(rate * duration_s)))
    drawn = rng.integers(0, len(lengths), len(times))
    requests = [
        lengths[which]._replace(arrival_s=float(at_s))
        for at_s, which in zip(times, drawn, strict=True)
    ]
    return by_request("constant load (Poisson)", requests, pool=a100(), slo=CHAT, window_s=60.0)


def servegen(folder: Path, *, quick: bool) -> Case:
    """Two weeks by the second."""
    path, rate = folder / SERVEGEN, 0.5
    pool = h100()
    # Lengths drift over the weeks; those that a replica is measured with are of all of them.
    rng = np.random.default_rng(0)
    whole = list(open_trace(path, windows=WindowOptions(rate_factor=1e-4)))
    carried = sustained(pool, [whole[i] for i in rng.permutation(len(whole))], CHAT)
    seconds = seconds_of(path, rate=rate, duration_s=(0.5 if quick else 14.0) * DAY_S)
    at_first, most = _bounds(seconds.tokens, carried.tokens_per_s)
    each = carried.tokens_per_s / carried.requests_per_s
    return Case(
        name="ServeGen m-large, half the rate",
        world=FluidWorld(
            seconds=seconds,
            sustained=carried,
            start_s=pool.spec.start_s,
            devices=pool.spec.devices,
            initial=at_first,
            most=most,
        ),
        held_tokens=_held(pool, each),
        tick_s=5.0,
    )


CASES: dict[str, Callable[..., Case]] = {
    "conversation": conversation,
    "code": code,
    "mooncake": mooncake,
    "servegen": servegen,
    "constant": constant,
}


def _open(folder: Path, name: str, *, quick: bool) -> Sequence[TraceRequest]:
    return list(cut(open_trace(folder / name), start_s=0.0, end_s=600.0 if quick else math.inf))


def _held(pool: PoolSetup, each: float) -> float:
    """As `cluster.pool_capacity.in_flight_tokens`: the batch, or the cache."""
    return min(pool.limits.max_requests * each, pool.limits.max_tokens)


def _bounds(by_second: Floats, carried: float) -> tuple[int, int]:
    """Replicas at first, for its fullest 10 s; and at most, for twice the fullest of all."""
    return (
        max(1, math.ceil(_fullest(by_second[:120], 10) / carried / 0.8)),
        math.ceil(2.0 * _fullest(by_second, 10) / carried),
    )


def _fullest(by_second: Floats, width: int) -> float:
    return float(np.convolve(by_second, np.ones(width) / width, mode="valid").max())
