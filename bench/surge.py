"""What does a service do while three times its load comes, and after?

    python -m bench.surge [--quick] [--json FILE] [--minutes 60] [--every 10] [--load 3.0]

A service of its own, steered as tests of steering have it (delays of seconds): the bundled model,
main 1 to 2 replicas, the lighter model 0 to 1. Callers come as a Poisson process, one in ten a VIP:
at half the rate that one replica was measured to bear, and once in `--every` minutes, for 75 s, at
`--load` times the rate it bears. Then what the controller wrote is told: each tier with when it was
entered, and every change of size; and the whole log is decided again by `shardwise replay`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from autoscaler.decision_log import Tick, parse
from autoscaler.reasons import Action
from bench.overload import spread, ttfts
from tests.live.instance import FAST_STEERING
from tests.live.open_load import Ask, Seen, closed, poisson
from tests.live.plain_instance import MODEL
from tests.live.two_pools import two_pools

CALM = 0.5
SURGE_S = 75.0
VIP_SHARE = 0.1
REST_S = 60.0


@dataclass(frozen=True)
class Phase:
    """So many times what one replica bears, for so long."""

    name: str
    load: float
    duration_s: float


def phases(*, minutes: float, every: float, load: float) -> Iterator[Phase]:
    """Calm and surge by turns, calm at last."""
    for _ in range(max(1, round(minutes / every))):
        yield Phase("calm", CALM, 60.0 * every / 2 - SURGE_S / 2)
        yield Phase("surge", load, SURGE_S)
        yield Phase("calm", CALM, 60.0 * every / 2 - SURGE_S / 2)


async def drive(url: str, plan: Sequence[Phase], *, output: int) -> dict[str, object]:
    """The load, and what its callers got."""
    ask = Ask(model=MODEL, output=output)
    seen: dict[str, list[Seen]] = {}
    async with httpx.AsyncClient(
        base_url=url, timeout=600.0, limits=httpx.Limits(max_connections=None)
    ) as client:
        full = await closed(client, ask, width=4, duration_s=15.0)
        bears = len(full) / max(one.came_s + one.total_s for one in full)
        for number, phase in enumerate(plan):
            print(f"{time.strftime('%H:%M:%S')} {phase.name}: {phase.load} x {bears:.2f}/s")
            seen.setdefault(phase.name, []).extend(
                await poisson(
                    client,
                    ask,
                    rate=phase.load * bears,
                    duration_s=phase.duration_s,
                    vip_share=VIP_SHARE,
                    seed=number,
                )
            )
        await asyncio.sleep(REST_S)  # for the last tier to be left
    return {"bears_requests_per_s": bears} | {
        name: outcome(callers) for name, callers in seen.items()
    }


def outcome(seen: Sequence[Seen]) -> dict[str, object]:
    """What callers of one kind of phase got."""
    vips = [one for one in seen if one.priority == "vip"]
    answered = [one for one in seen if one.status == 200]
    return {
        "callers": len(seen),
        "statuses": dict(Counter(one.status for one in seen)),
        "broken_streams": sum(one.ended != "[DONE]" for one in answered),
        "vips_refused": sum(one.status != 200 for one in vips),
        "vip_ttft_s": spread(ttfts(vips)),
        "standard_ttft_s": spread(ttfts([one for one in seen if one.priority != "vip"])),
    }


def story(log: Path) -> dict[str, object]:
    """Tiers and sizes by time, from what the controller wrote."""
    with log.open(encoding="utf-8") as lines:
        records = [record for _, record in parse(lines, source=str(log))]
    ticks = [record for record in records if isinstance(record, Tick)]
    began_s = ticks[0].snapshot.now_s
    changes = [
        (round(tick.snapshot.now_s - began_s), decision)
        for tick in ticks
        for decision in tick.decisions
        if decision.action is not Action.HOLD
    ]
    return {
        "hours": (ticks[-1].snapshot.now_s - began_s) / 3600.0,
        "ticks": len(ticks),
        "highest_tier": max(int(tick.tier) for tick in ticks),
        "last_tier": int(ticks[-1].tier),
        "changes": [
            f"{at_s} s: {d.action.value} {d.pool} {d.value} {d.subject}: {d.reason}"
            for at_s, d in changes
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one surge in five minutes")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=10.0, help="minutes from surge to surge")
    parser.add_argument("--load", type=float, default=3.0, help="times what a replica bears")
    parser.add_argument("--output", type=int, default=16, help="tokens of an answer")
    arguments = parser.parse_args()
    minutes, every = (5.0, 5.0) if arguments.quick else (arguments.minutes, arguments.every)
    plan = list(phases(minutes=minutes, every=every, load=arguments.load))
    with (
        tempfile.TemporaryDirectory() as home,
        two_pools(Path(home), steering=FAST_STEERING) as instance,
    ):
        figures = asyncio.run(drive(instance.url, plan, output=arguments.output))
        log = Path(home) / "instance" / "decisions.jsonl"
        figures |= story(log)
        replayed = instance.command("replay", str(log))
    figures["replay"] = (replayed.stdout + replayed.stderr).strip().replace(str(log), "log")
    for name, value in figures.items():
        for line in value if isinstance(value, list) else [value]:
            print(f"{name:22} {line}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if replayed.returncode != 0:
        raise SystemExit("the replay decides otherwise")


if __name__ == "__main__":
    main()
