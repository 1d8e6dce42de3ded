"""What does a VIP notice of twice the load that a service can bear?

    python -m bench.overload [--quick] [--json FILE] [--slots N] [--output N] [--load 2.0]

A service of its own: one replica of the bundled model, `--slots` sequences at once, tiers and
scaling advisory so that the waiting line alone carries the load. First a VIP asks alone, again and
again; then as many callers as there are slots, for the rate the service bears; then `--load` times
that rate comes, as a Poisson process with 10 % VIPs. Before that a VIP asks while all slots but one
are busy: what it notices then is the engine's, what it notices beyond that is the line's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx

from tests.live.open_load import Ask, Seen, call, closed, overtaken, poisson
from tests.live.plain_instance import MODEL, plain_instance

VIP_SHARE = 0.1
LIMITS = {"queue_wait_s": 30.0, "max_queued": 64}


async def measure(
    url: str, *, slots: int, output: int, load: float, times: int, duration_s: float
) -> dict[str, object]:
    """The figures."""
    ask = Ask(model=MODEL, output=output)
    async with httpx.AsyncClient(
        base_url=url, timeout=600.0, limits=httpx.Limits(max_connections=None)
    ) as client:

        async def alone(number: int) -> Seen:
            return await call(client, ask, number=number, priority="vip", began_s=0.0)

        await alone(0)  # what compiles at the first request has compiled
        idle = [await alone(number) for number in range(1, times + 1)]
        full = await closed(client, ask, width=slots, duration_s=duration_s / 2)
        bears = sum(one.status == 200 for one in full) / max(
            one.came_s + one.total_s for one in full
        )
        beside = asyncio.create_task(
            closed(client, ask, width=slots - 1, duration_s=duration_s / 2)
        )
        spare: list[Seen] = []
        await asyncio.sleep(1.0)
        while not beside.done():
            spare.append(await alone(10_000 + len(spare)))
        seen = await poisson(
            client, ask, rate=load * bears, duration_s=duration_s, vip_share=VIP_SHARE
        )
    vips = [one for one in seen if one.priority == "vip"]
    others = [one for one in seen if one.priority != "vip"]
    refused = [one for one in seen if one.status == 429]
    alone_p99_s = percentile(ttfts(idle), 0.99)
    return {
        "bears_requests_per_s": bears,
        "asked_requests_per_s": load * bears,
        "callers": len(seen),
        "vips": len(vips),
        "statuses": dict(Counter(one.status for one in seen)),
        "refused_without_retry_after": sum(not one.retry_after for one in refused),
        "unfinished_streams": sum(one.status == 200 and one.ended != "[DONE]" for one in seen),
        "vips_answered": sum(one.status == 200 for one in vips),
        "overtaken_by_a_vip": statistics.mean(overtaken(one, seen) for one in vips),
        "vip_ttft_alone_s": spread(ttfts(idle)),
        "vip_ttft_one_slot_free_s": spread(ttfts(spare)),
        "vip_ttft_overload_s": spread(ttfts(vips)),
        "standard_ttft_overload_s": spread(ttfts(others)),
        "vip_p99_times_alone": percentile(ttfts(vips), 0.99) / alone_p99_s,
        "one_slot_free_p99_times_alone": percentile(ttfts(spare), 0.99) / alone_p99_s,
    }


def ttfts(seen: Sequence[Seen]) -> list[float]:
    return sorted(one.ttft_s for one in seen if one.ttft_s is not None)


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def spread(ordered: Sequence[float]) -> dict[str, float]:
    return {f"p{round(100 * share)}": percentile(ordered, share) for share in (0.5, 0.9, 0.99)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a third of the time")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--output", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--load", type=float, default=2.0, help="times what the service bears")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as home,
        plain_instance(Path(home), slots=arguments.slots, limits=LIMITS) as instance,
    ):
        figures = asyncio.run(
            measure(
                instance.url,
                slots=arguments.slots,
                output=arguments.output,
                load=arguments.load,
                times=20 if arguments.quick else 60,
                duration_s=30.0 if arguments.quick else 90.0,
            )
        )
    for name, value in figures.items():
        print(f"{name:32} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
