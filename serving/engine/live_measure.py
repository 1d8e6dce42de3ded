"""How long do a live engine's steps take? Goes through cells of decode and prompts.

Steps are timed by the engine's own clock, which stamps every output; callers' clocks give the front
end's share. Decode gaps are taken from when all sequences have their first token to when the first
one ends. A probe's steps are those that end after it was scheduled and no later than its first
token: there must be exactly one per chunk, or the probe is left out (something else ran, too).
Rounds go through all cells, so that a machine busy for a while does not pass for one whose long
steps are slow; from the second on the cheapest come first, so that what the budget ends is the
dearest. Medians over all runs are kept, and how far samples spread.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from cluster.calibration.live_file import (
    DecodePoint,
    LiveFile,
    MixedPoint,
    Point,
    PromptPoint,
    Provenance,
    chunks_of,
)
from cluster.calibration.live_fit import fit_front, fit_live
from serving.engine.live_engine import Heard, LiveEngine
from serving.engine.live_grid import Cell, DecodeCell, Limits, PromptCell
from serving.engine.live_replay import random_prompt, warm_up

_MOST_RUNS = 5
_SAME_S = 1e-6  # stamps of one step are equal but for rounding
Tell = Callable[[str], None]


@dataclass
class Samples:
    """What was seen, by point. Contexts are those of each sample."""

    prompts: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    decode: dict[tuple[int, int], list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    mixed: dict[tuple[int, int, int, int], list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    entered: list[tuple[int, float]] = field(default_factory=list)
    out_s: list[float] = field(default_factory=list)
    client_over_engine: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def points(self) -> list[Point]:
        """Medians and spreads, in the order decode, prompt, mixed."""
        points: list[Point] = [
            DecodePoint(
                sequences=sequences,
                context=_mean(context for _, context in seen),
                **_typical([seconds for seconds, _ in seen]),
            )
            for (sequences, _), seen in sorted(self.decode.items())
        ]
        points += [
            PromptPoint(tokens=tokens, **_typical(seconds))
            for tokens, seconds in sorted(self.prompts.items())
        ]
        points += [
            MixedPoint(
                sequences=sequences,
                context=_mean(context for _, context in seen),
                tokens=tokens,
                start=start,
                **_typical([seconds for seconds, _ in seen]),
            )
            for (sequences, _, tokens, start), seen in sorted(self.mixed.items())
        ]
        return points


def limits_of(engine: LiveEngine) -> Limits:
    """What a started engine can hold."""
    settings = engine.settings
    return Limits(
        sequences=settings.max_num_seqs,
        length=settings.max_model_len,
        chunk=settings.chunk,
        kv_tokens=engine.kv_tokens,
    )


async def measure(
    engine: LiveEngine, cells: Sequence[Cell], *, budget_s: float, tell: Tell
) -> Samples:
    """Rounds through the cells, the cheapest first from the second on, until the budget is spent.

    No cell begins that would overrun the budget.
    """
    samples = Samples()
    await warm_up(engine)
    begin = time.monotonic()
    rng = random.Random(0)
    runs: dict[Cell, list[float]] = {}
    for number, cell in enumerate(_turns(cells, runs, left_s=lambda: _left(begin, budget_s))):
        began = time.monotonic()
        tell(f"{number + 1}: {describe(cell)}")
        await _run(engine, cell, samples, rng)
        runs.setdefault(cell, []).append(time.monotonic() - began)
    samples.notes += [
        f"not measured, the budget of {budget_s:g} s is too short: {describe(cell)}"
        for cell in cells
        if cell not in runs
    ]
    return samples


def live_file(engine: LiveEngine, samples: Samples, *, date: str, measured_s: float) -> LiveFile:
    """The file of what was measured, fitted. Raises InputError where it is too little."""
    settings = engine.settings
    points = samples.points()
    return LiveFile(
        provenance=Provenance(
            model=settings.model.name,
            engine=engine.version,
            device=engine.device,
            threads=settings.threads,
            date=date,
            measured_s=round(measured_s, 1),
            async_scheduling=engine.async_scheduling,
            kv_tokens=engine.kv_tokens,
            max_num_seqs=settings.max_num_seqs,
            max_model_len=settings.max_model_len,
            chunk=settings.chunk,
            engine_args=engine.arguments,
            notes=samples.notes,
        ),
        points=points,
        fitted=fit_live(points, chunk=settings.chunk),
        front=fit_front(
            [tokens for tokens, _ in samples.entered],
            [seconds for _, seconds in samples.entered],
            out_s=samples.out_s,
            client_over_engine=statistics.median(samples.client_over_engine),
        ),
    )


def describe(cell: Cell) -> str:
    """For people."""
    match cell:
        case PromptCell():
            return f"prompt of {cell.tokens} tokens"
        case DecodeCell():
            probes = f", probes of {', '.join(map(str, cell.probes))}" if cell.probes else ""
            return f"{cell.sequences} x {cell.prompt} tokens decoding{probes}"


async def _run(engine: LiveEngine, cell: Cell, samples: Samples, rng: random.Random) -> None:
    match cell:
        case PromptCell():
            prompt = random_prompt(rng, cell.tokens, vocabulary=engine.vocabulary)
            heard = await engine.ask(prompt, output=1)
            samples.prompts[cell.tokens].append(heard.stepped_s[0] - heard.scheduled_s)
            samples.entered.append((cell.tokens, heard.scheduled_s - heard.sent_s))
            samples.out_s.append(heard.heard_s[0] - heard.stepped_s[0])
        case DecodeCell():
            decoding, probes = await _decode(engine, cell, rng)
            sift(samples, cell, decoding, probes, chunk=engine.settings.chunk)


async def _decode(
    engine: LiveEngine, cell: DecodeCell, rng: random.Random
) -> tuple[list[Heard], list[Heard]]:
    """The sequences, and the probes sent one after another once all sequences decode."""
    vocabulary, output = engine.vocabulary, cell.output(engine.settings.chunk)
    prompts = [
        random_prompt(rng, cell.prompt, vocabulary=vocabulary) for _ in range(cell.sequences)
    ]
    among = [random_prompt(rng, tokens, vocabulary=vocabulary) for tokens in cell.probes]
    first = [asyncio.Event() for _ in prompts]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(engine.ask(prompt, output=output, first=event))
            for prompt, event in zip(prompts, first, strict=True)
        ]
        for event in first:
            await event.wait()
        probes = [await engine.ask(probe, output=1) for probe in among]
    return [task.result() for task in tasks], probes


def sift(
    samples: Samples,
    cell: DecodeCell,
    decoding: Sequence[Heard],
    probes: Sequence[Heard],
    *,
    chunk: int,
) -> None:
    """Sort the gaps of one run of a cell into decode and mixed steps."""
    if any(heard.tokens != len(heard.stepped_s) for heard in decoding):
        samples.notes.append(f"left out, a caller fell behind: {describe(cell)}")
        return
    begin = max(heard.stepped_s[0] for heard in decoding)
    end = min(heard.stepped_s[-1] for heard in decoding)
    clock = max(decoding, key=lambda heard: heard.stepped_s[0])
    stamps = [at for at in clock.stepped_s if begin <= at <= end + _SAME_S]
    gaps = list(pairwise(stamps))
    stretched: set[tuple[float, float]] = set()
    for probe in probes:
        scheduled, done = probe.scheduled_s, probe.stepped_s[0]
        own = [gap for gap in gaps if scheduled < gap[1] <= done + _SAME_S]
        stretched.update(own)
        chunks = chunks_of(probe.prompt_tokens, chunk - cell.sequences)
        if len(own) != len(chunks):
            samples.notes.append(
                f"left out, {len(own)} steps for {len(chunks)} chunks: {describe(cell)}"
            )
            continue
        for each, gap in zip(chunks, own, strict=True):
            key = (cell.sequences, cell.prompt, each.tokens, each.start)
            samples.mixed[key].append((gap[1] - gap[0], _held(decoding, gap[0])))
    plain = [gap for gap in gaps if gap not in stretched]
    samples.decode[cell.sequences, cell.prompt] += [
        (gap[1] - gap[0], _held(decoding, gap[0])) for gap in plain
    ]
    _compare_clocks(samples, clock, decoding, plain)


def _compare_clocks(
    samples: Samples,
    clock: Heard,
    decoding: Sequence[Heard],
    plain: Sequence[tuple[float, float]],
) -> None:
    samples.out_s += [
        heard - stepped
        for each in decoding
        for stepped, heard in zip(each.stepped_s, each.heard_s, strict=True)
    ]
    heard_at = dict(zip(clock.stepped_s, clock.heard_s, strict=True))
    if plain:
        samples.client_over_engine.append(
            statistics.median(heard_at[high] - heard_at[low] for low, high in plain)
            / statistics.median(high - low for low, high in plain)
        )


def _held(decoding: Sequence[Heard], at: float) -> float:
    """Tokens of context that the step after `at` reads."""
    return float(
        sum(heard.prompt_tokens + bisect_right(heard.stepped_s, at + _SAME_S) for heard in decoding)
    )


def _turns(
    cells: Sequence[Cell], runs: dict[Cell, list[float]], *, left_s: Callable[[], float]
) -> Iterator[Cell]:
    """Which cell next? `runs` are the seconds of each one's runs, and grow meanwhile."""
    for cell in cells:
        if _guess(cell, runs) < left_s():
            yield cell
    while True:
        again = [
            cell
            for cell, seconds in runs.items()
            if len(seconds) < _MOST_RUNS and max(seconds) < left_s()
        ]
        if not again:
            return
        yield min(again, key=lambda cell: (len(runs[cell]), sum(runs[cell])))


def _left(begin_s: float, budget_s: float) -> float:
    return budget_s - (time.monotonic() - begin_s)


def _guess(cell: Cell, runs: dict[Cell, list[float]]) -> float:
    """Of a cell not run yet, at least: its prompts at the best rate seen so far."""
    rates = [seconds[0] / each.prompt_tokens for each, seconds in runs.items()]
    return cell.prompt_tokens * min(rates, default=0.0)


def _typical(seconds: Sequence[float]) -> dict[str, float | int]:
    middle = statistics.median_low(seconds)  # of two, the one that others disturbed less
    if len(seconds) < 4:
        wide = max(seconds) - min(seconds)
    else:
        low, _, high = statistics.quantiles(seconds, n=4)
        wide = high - low
    return {
        "seconds": float(f"{middle:.6g}"),
        "spread": round(wide / middle, 4),
        "samples": len(seconds),
    }


def _mean(values: Iterable[float]) -> float:
    return round(statistics.fmean(values), 1)
