"""What article C says of speeds on GPT-MoE-1.8T, beside what our cost model says, with its parts.

A claim is a function from a setting (model, devices, workload, grid) to the article's figure, ours,
and the parts of our estimate that explain it. No figure of ours is written down here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product

from bench.gpt_moe_curves import (
    CHUNKS,
    DEVICES,
    EXPERTS,
    MEMORY,
    Curve,
    Degrees,
    Point,
    Setting,
    name_of,
    what_ifs,
)
from cluster.model.model_spec import ModelSpec

ARTICLE_COUNT = 73
READING_SPEED = 20.0  # tokens/s/user
EP16, EP16PP4, TP64, TP4EP4PP4 = (1, 16, 1), (1, 16, 4), (64, 1, 1), (4, 4, 4)
TP2EP16PP2, TP8EP8 = (2, 16, 2), (8, 8, 1)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the article beside our figure; `why` reads the parts of our estimate."""

    name: str
    article: str
    ours: str
    why: tuple[str, ...]
    values: dict[str, object]


def combinations(
    *, most_ep: int = DEVICES, least_devices: int = 1, layers: int | None = None
) -> list[Degrees]:
    """Powers of two with TP * EP * PP * DP = 64 under the bounds; `layers`: PP divides them."""
    powers = [1 << n for n in range(DEVICES.bit_length())]
    return [
        (tp, ep, pp)
        for tp, ep, pp in product(powers, repeat=3)
        if least_devices <= tp * ep * pp <= DEVICES
        and ep <= most_ep
        and (layers is None or layers % pp == 0)
    ]


def least_devices_for_weights(model: ModelSpec) -> int:
    """Devices of 192 GB for half a byte per parameter, the article's sum."""
    return math.ceil(model.params * 0.5 / MEMORY)


def experts_claim(setting: Setting) -> Claim:
    """EP16PP4 against EP16DP4: 2x interactivity for 10 % of the throughput."""
    base, piped = setting.curve(EP16), setting.curve(EP16PP4)
    peak = base.busiest()
    assert peak is not None
    floor = 0.9 * peak.tokens_per_s_per_device
    there, own = piped.fastest(per_device=floor), base.fastest(per_device=floor)
    assert own is not None
    most = piped.busiest()
    gain = _ratio(there, peak, "tokens_per_s_per_user")
    alone = _ratio(own, peak, "tokens_per_s_per_user")
    of_pipe = None if gain is None or alone is None else gain / alone
    equal = {
        f"{speed:g}": _ratio(
            piped.busiest(per_user=speed), base.busiest(per_user=speed), "tokens_per_s_per_device"
        )
        for speed in (5.0, 10.0, 15.0, READING_SPEED)
    }
    return Claim(
        name="EP16PP4 against EP16DP4",
        article="2x interactivity, 10 % less throughput",
        ours=f"{_times(gain)} interactivity at 90 % of EP16DP4's peak throughput, but EP16DP4 "
        f"itself gains {_times(alone)} by giving up 10 %: the pipeline's own {_times(of_pipe)}",
        why=(
            f"peak throughput {_times(_ratio(most, peak, 'tokens_per_s_per_device'))}",
            "throughput at equal tokens/s/user: "
            + ", ".join(f"{speed}: {_times(ratio)}" for speed, ratio in equal.items()),
            f"KV cache of all 64 GPUs: {_cache_ratio(base, piped):.2f}x, as a stage holds a "
            "quarter of the weights; but a token passes all stages, so it waits for the same reads",
            *_compare_parts(own, there),
        ),
        values={
            "interactivity_at_90_percent": gain,
            "of_the_pipeline_alone": of_pipe,
            "throughput_at_equal_interactivity": equal,
            "points": [asdict(point) for point in (peak, own, there) if point is not None],
        },
    )


def tensor_claim(setting: Setting) -> Claim:
    """TP4EP4PP4 against TP64: 3x throughput at equal interactivity."""
    base, mixed = setting.curve(TP64), setting.curve(TP4EP4PP4)
    speeds = (5.0, 10.0, READING_SPEED, 30.0, 40.0)
    pairs = {
        speed: (base.busiest(per_user=speed), mixed.busiest(per_user=speed)) for speed in speeds
    }
    ratios = {
        f"{speed:g}": _ratio(theirs, ours, "tokens_per_s_per_device")
        for speed, (ours, theirs) in pairs.items()
    }
    slow, quick = pairs[READING_SPEED]
    changed = {
        name: _ratio(
            other.curve(TP4EP4PP4).busiest(per_user=READING_SPEED),
            other.curve(TP64).busiest(per_user=READING_SPEED),
            "tokens_per_s_per_device",
        )
        for name, other in what_ifs(setting).items()
    }
    return Claim(
        name="TP4EP4PP4 against TP64",
        article="3x throughput at equal interactivity",
        ours=f"{_times(ratios[f'{READING_SPEED:g}'])} at {READING_SPEED:g} tokens/s/user",
        why=(
            "at other tokens/s/user: "
            + ", ".join(f"{speed}: {_times(ratio)}" for speed, ratio in ratios.items()),
            f"at {READING_SPEED:g} with "
            + ", ".join(f"{name}: {_times(ratio)}" for name, ratio in changed.items()),
            *_compare_parts(slow, quick),
        ),
        values={
            "throughput_ratio": ratios,
            "what_if": changed,
            "points": [asdict(point) for point in (slow, quick) if point is not None],
        },
    )


def chunk_claim(setting: Setting) -> Claim:
    """The chunk sweep at TP2EP16PP2."""
    curve = setting.curve(TP2EP16PP2)
    ep = TP2EP16PP2[1]
    best = curve.busiest(per_user=READING_SPEED)
    prompt = curve.busiest(per_user=READING_SPEED, ttft_s=5.0)
    swept = {chunk: curve.busiest(per_user=READING_SPEED, chunk=chunk) for chunk in setting.chunks}
    shown = [chunk for chunk in (32, 64, 128, 256, 512, 896, 2048, 8192) if chunk in swept]
    stated = curve.busiest(chunk=896)
    changed = {
        name: other.curve(TP2EP16PP2).busiest(per_user=READING_SPEED)
        for name, other in what_ifs(setting).items()
    }
    speeds = {f"{speed:g}": curve.busiest(per_user=speed) for speed in (5.0, 10.0, 15.0, 30.0)}
    why = [
        f"tokens/s/GPU at >= {READING_SPEED:g} tokens/s/user by chunk of a rank: "
        + ", ".join(f"{chunk}: {_throughput(swept[chunk])}" for chunk in shown),
        "best chunk of a rank at other tokens/s/user: "
        + ", ".join(f"{speed}: {point.chunk if point else '-'}" for speed, point in speeds.items()),
        "best chunk of a rank with "
        + ", ".join(f"{name}: {point.chunk if point else '-'}" for name, point in changed.items()),
        f"with TTFT <= 5 s as well: {_chunk(prompt, ep)}",
        f"the article does not say whose 896 tokens: a rank's, or all {ep} ranks' (56 each)",
        f"{len(CHUNKS)} chunk lengths x {ARTICLE_COUNT} = {ARTICLE_COUNT * len(CHUNKS):,} points "
        "(its source: over 2.7K)",
    ]
    if stated is not None:
        why.insert(
            1,
            f"896 tokens on every rank reach {stated.tokens_per_s_per_device:.1f} tokens/s/GPU, "
            f"but at {stated.tokens_per_s_per_user:.1f} tokens/s/user: {_parts(stated)}",
        )
    return Claim(
        name="best chunk at TP2EP16PP2",
        article="896 tokens near 20 tokens/s/user",
        ours=_chunk(best, ep),
        why=tuple(why),
        values={
            "best": None if best is None else asdict(best),
            "what_if": {name: point and point.chunk for name, point in changed.items()},
            "sweep": {
                str(chunk): None if point is None else point.tokens_per_s_per_device
                for chunk, point in swept.items()
            },
        },
    )


def trade_claim(setting: Setting) -> Claim:
    """The article's table of chunk sizes: a small chunk is slow to start and quick to go on."""
    curve = setting.curve(TP2EP16PP2)
    least = curve.table.pp[0]  # sequences of a rank that fill the stages
    points = {
        chunk: point
        for chunk in (128, 896, 8192)
        for point in [curve.busiest(chunk=chunk, batch=int(least))]
        if point is not None
    }
    return Claim(
        name="chunk size at TP2EP16PP2, lightest load",
        article="TTFT: 128 long, 896 short, 8192 shortest; tokens/s/user: high, medium, low",
        ours="; ".join(
            f"{chunk}: TTFT {point.ttft_s:.2f} s, {point.tokens_per_s_per_user:.1f} tokens/s/user"
            for chunk, point in points.items()
        ),
        why=(f"{least} sequences per rank, so that every stage has one",),
        values={str(chunk): asdict(point) for chunk, point in points.items()},
    )


def choice_claim(setting: Setting) -> Claim:
    """The article's layouts by priority, beside the best of the layouts that it counts."""
    need = least_devices_for_weights(setting.model)
    curves = [setting.curve(d) for d in combinations(most_ep=EXPERTS, least_devices=need)]
    goals: dict[str, tuple[Degrees, Callable[[Curve], float]]] = {
        "tokens/s/GPU": (TP8EP8, lambda c: _value(c.busiest(), "tokens_per_s_per_device")),
        f"tokens/s/GPU at {READING_SPEED:g} tokens/s/user": (
            TP2EP16PP2,
            lambda c: _value(c.busiest(per_user=READING_SPEED), "tokens_per_s_per_device"),
        ),
        "tokens/s/GPU x tokens/s/user": (TP4EP4PP4, lambda c: c.best_product()),
    }
    lines, values = [], {}
    for goal, (theirs, value_of) in goals.items():
        ranked = sorted(((value_of(c), c.degrees) for c in curves), reverse=True)
        place = [degrees for _, degrees in ranked].index(theirs) + 1
        own = ranked[place - 1][0]
        lines.append(
            f"{goal}: {name_of(ranked[0][1])} {ranked[0][0]:,.1f}; the article's "
            f"{name_of(theirs)} {own:,.1f}, place {place} of {len(ranked)}"
        )
        values[goal] = {"best": name_of(ranked[0][1]), "article": name_of(theirs), "place": place}
    return Claim(
        name="layout by priority",
        article="throughput TP8EP8, interactive TP2EP16PP2, balanced TP4EP4PP4",
        ours=lines[0],
        why=tuple(lines[1:]),
        values=values,
    )


def _ratio(ours: Point | None, other: Point | None, field: str) -> float | None:
    if ours is None or other is None:
        return None
    return float(getattr(ours, field)) / float(getattr(other, field))


def _value(point: Point | None, field: str) -> float:
    return 0.0 if point is None else float(getattr(point, field))


def _times(ratio: float | None) -> str:
    return "not reached" if ratio is None else f"{ratio:.2f}x"


def _throughput(point: Point | None) -> str:
    return "-" if point is None else f"{point.tokens_per_s_per_device:.1f}"


def _chunk(point: Point | None, ranks: int) -> str:
    if point is None:
        return "no chunk"
    return (
        f"{point.chunk} per rank ({point.chunk * ranks:,} per replica), "
        f"{point.tokens_per_s_per_device:.1f} tokens/s/GPU"
    )


def _cache_ratio(base: Curve, other: Curve) -> float:
    def tokens(curve: Curve) -> float:
        return float(curve.estimates.kv_capacity_tokens.max()) * float(curve.table.replicas[0])

    return tokens(other) / tokens(base)


def _parts(point: Point) -> str:
    whole = sum(point.tpot_parts_ms.values())
    shown = sorted(point.tpot_parts_ms.items(), key=lambda item: -item[1])
    text = ", ".join(f"{name} {value:.1f}" for name, value in shown if value > 0.02 * whole)
    return f"TPOT {whole:.1f} ms = {text}"


def _compare_parts(*points: Point | None) -> list[str]:
    return [
        f"{point.layout}, {point.batch} sequences and chunk {point.chunk} per rank: {_parts(point)}"
        for point in points
        if point is not None
    ]
