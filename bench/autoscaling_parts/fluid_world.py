"""Weeks of traffic, second by second: `cluster.sim.fluid` as a world.

Predicted tokens flow through a first-in-first-out line into replicas that carry what one sustains
in the trace simulator. Tokens are within the SLO if they wait in line for at most `WAIT_S`; what
the engine adds (a prompt's own time, decoding beside others) is within the bounds by the
definition of *sustained*. As at the gateway, what waits for `QUEUE_S` is given up. First in, first
out means that what arrived until t is inside at t + w exactly if the tokens admitted by then are
as many, so that attainment is read off two running sums.

What comes is made of ServeGen's windows at their own rates, every request drawn: gaps of the
window's variation, prompts lognormal, outputs geometric; then summed to seconds. So bursts are
those of the whole traffic, and nothing is thinned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.autoscaling_parts.world import POOL, Floats, Run, Sizer, Sustained, Watched
from cluster.pool_ledger import ARRIVAL_WINDOW_S, Traffic
from cluster.routing import predicted_tokens
from cluster.sim.driver import Driver, PoolFacts
from cluster.sim.fluid import FluidPool, FluidSpec, advance, set_target
from cluster.sim.replica import SimReport
from cluster.traces.lengths import Exponential, Lognormal
from cluster.traces.options import WindowOptions
from cluster.traces.request import TraceRequest
from cluster.traces.servegen import servegen_windows
from cluster.traces.source import Source
from cluster.traces.windows import arrivals

STEP_S = 1.0
WAIT_S = 1.0
QUEUE_S = 60.0
LEAD_IN_S = 60


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """What came in each second: requests, and their tokens, prompt and output."""

    requests: Floats
    prompt_tokens: Floats
    output_tokens: Floats

    def part(self, first_s: int, last_s: int) -> Seconds:
        """Some of them."""
        return Seconds(
            requests=self.requests[first_s:last_s],
            prompt_tokens=self.prompt_tokens[first_s:last_s],
            output_tokens=self.output_tokens[first_s:last_s],
        )

    @property
    def tokens(self) -> Floats:
        """Predicted tokens."""
        per_prompt = predicted_tokens(prompt_tokens=1, output_tokens=0.0)
        per_output = predicted_tokens(prompt_tokens=0, output_tokens=1.0)
        return self.prompt_tokens * per_prompt + self.output_tokens * per_output


def seconds_of(path: Path, *, rate: float, duration_s: float, seed: int = 0) -> Seconds:
    """The first `duration_s` of a ServeGen file at `rate` times its rate."""
    options = WindowOptions(rate_factor=rate, seed=seed)
    rng = np.random.Generator(np.random.PCG64(seed))
    length = int(duration_s)
    requests, prompts, outputs = np.zeros(length), np.zeros(length), np.zeros(length)
    for window in servegen_windows(Source(path=path, windows=options)):
        if window.start_s >= duration_s:
            break
        prompt_law = Lognormal.of_sigma(window.prompt_tokens, options.prompt_sigma)
        output_law = Exponential(window.output_tokens)
        for times in arrivals(window, rng):
            at = np.minimum(times.astype(int), length - 1)
            requests += np.bincount(at, minlength=length)
            prompts += np.bincount(at, weights=prompt_law.draw(rng, len(at)), minlength=length)
            outputs += np.bincount(at, weights=output_law.draw(rng, len(at)), minlength=length)
    return Seconds(requests=requests, prompt_tokens=prompts, output_tokens=outputs)


@dataclass(frozen=True, kw_only=True)
class FluidWorld:
    """Seconds of traffic and the replicas that serve it. `devices`: of a replica."""

    seconds: Seconds
    sustained: Sustained
    start_s: float
    devices: int
    initial: int
    most: int
    window_s: float = 300.0

    def run(self, driver: Driver) -> Run:
        """See `Bench`."""
        watched = Watched(driver, initial=self.initial, most=self.most)
        played = _Play(self, watched, driver if isinstance(driver, Sizer) else None)
        played.play()
        tokens = self.seconds.tokens
        taken = np.cumsum(tokens - played.refused)
        late = late_tokens(taken, played.admitted, steps=round(WAIT_S / STEP_S))
        missed = float(late.sum() + played.refused.sum())
        return Run(
            attainment=1.0 - missed / float(tokens.sum()),
            gpu_hours=played.replica_s * self.devices / 3600.0,
            duration_s=len(tokens) * STEP_S,
            targets=tuple(watched.targets),
        )

    def arrived(self) -> Floats:
        """See `Bench`: in requests of the mean length."""
        return self._by_window(self.seconds.tokens) / self._tokens

    def missed(self, replicas: int, windows: Sequence[int]) -> Floats:
        """See `Bench`: all windows side by side, with the step of `cluster.sim.fluid`."""
        width, tokens = round(self.window_s), self.seconds.tokens
        padded = np.concatenate([np.zeros(LEAD_IN_S), tokens, np.zeros(width)])
        starts = np.array(windows) * width
        came = padded[starts[:, None] + np.arange(LEAD_IN_S + width)]
        full = replicas * self.sustained.in_flight_tokens
        residence_s = self.sustained.in_flight_tokens / self.sustained.tokens_per_s
        inside, queue = np.zeros(len(starts)), np.zeros(len(starts))
        admitted = np.zeros_like(came)
        for step in range(came.shape[1]):
            inside *= np.exp(-STEP_S / residence_s)
            waiting = queue + came[:, step]
            taken = np.minimum(waiting, np.maximum(0.0, full - inside))
            inside, queue = inside + taken, waiting - taken
            admitted[:, step] = taken
        late = late_tokens(
            np.cumsum(came, axis=1), np.cumsum(admitted, axis=1), steps=round(WAIT_S / STEP_S)
        )
        return np.asarray(late[:, LEAD_IN_S:].sum(axis=1) / self._tokens)

    @property
    def _tokens(self) -> float:
        return self.sustained.tokens_per_s / self.sustained.requests_per_s

    def _by_window(self, values: Floats) -> Floats:
        width = round(self.window_s)
        padded = np.concatenate([values, np.zeros(-len(values) % width)])
        return np.asarray(padded.reshape(-1, width).sum(axis=1))


def late_tokens(arrived: Floats, admitted: Floats, *, steps: int) -> Floats:
    """Of running sums over the last axis: what came in each step and was not inside in time."""
    in_time = np.concatenate(
        [admitted[..., steps:], np.repeat(admitted[..., -1:], steps, axis=-1)], axis=-1
    )
    came = np.diff(arrived, axis=-1, prepend=0.0)
    return np.clip(arrived - in_time, 0.0, came)


class _Play:
    """One run: what was admitted until each step, refused in it, and the replica seconds."""

    def __init__(self, world: FluidWorld, driver: Watched, sizer: Sizer | None) -> None:
        self._world, self._driver, self._sizer = world, driver, sizer
        carried = world.sustained
        spec = FluidSpec(
            capacity_tokens_per_s=carried.tokens_per_s,
            capacity_in_flight_tokens=carried.in_flight_tokens,
            cold_start_s=world.start_s,
        )
        self._pool = FluidPool(spec=spec, ready=world.initial)
        self._window: deque[float] = deque(maxlen=round(ARRIVAL_WINDOW_S / STEP_S))
        self.admitted = np.zeros(len(world.seconds.requests))
        self.refused = np.zeros(len(world.seconds.requests))
        self.replica_s = 0.0

    def play(self) -> None:
        """All of it."""
        seconds, driver = self._world.seconds, self._driver
        came = zip(
            seconds.tokens.tolist(),
            seconds.requests.tolist(),
            seconds.prompt_tokens.tolist(),
            seconds.output_tokens.tolist(),
            strict=True,
        )
        next_tick_s = 0.0
        for index, (tokens, requests, prompts, outputs) in enumerate(came):
            refused = self._sizer is None and requests > 0 and bool(driver.admit(_ANY).refused)
            self._window.append(tokens)
            self._pool = advance(
                self._pool,
                dt_s=STEP_S,
                arrival_tokens_per_s=0.0 if refused else tokens / STEP_S,
            )
            if refused:
                self.refused[index] = tokens
            if self._sizer is not None:
                self._sizer.saw(requests, prompts, outputs)
            queued = self._give_up()
            self.replica_s += self._pool.target * STEP_S
            self.admitted[index] = self._pool.arrived_tokens - queued
            if self._pool.now_s >= next_tick_s:
                orders = driver.tick((self._facts(queued),), self._pool.now_s)
                for replicas in orders.sizes.values():
                    self._pool = set_target(self._pool, replicas)
                next_tick_s = self._pool.now_s + driver.tick_s

    def _give_up(self) -> float:
        """Tokens waiting, after those that waited too long have gone."""
        pool = self._pool
        if not pool.queue:
            return 0.0
        if pool.oldest_wait_s > QUEUE_S:
            kept = tuple(one for one in pool.queue if pool.now_s - one[0] <= QUEUE_S)
            self._pool = pool = replace(pool, queue=kept)
        return pool.queued_tokens

    def _facts(self, queued: float) -> PoolFacts:
        pool, each = self._pool, self._world._tokens
        arriving = sum(self._window) / (len(self._window) * STEP_S)
        return PoolFacts(
            name=POOL,
            target=pool.target,
            ready=pool.ready,
            pending=len(pool.starting),
            reports=(
                SimReport(
                    replica_id=f"{POOL}/all",
                    sent_s=pool.now_s,
                    running=round(pool.in_flight_tokens / each),
                    waiting=0,
                    kv_usage=0.0,
                ),
            ),
            traffic=Traffic(
                arrival_tokens_per_s=arriving,
                in_flight_tokens=pool.in_flight_tokens,
                queued_tokens=queued,
                queued_requests=round(queued / each),
                oldest_wait_s=pool.oldest_wait_s,
                # As in `autoscaler.virtual`: a token's work is its share of what one delivers.
                arrival_work=arriving / pool.spec.capacity_tokens_per_s,
                in_flight_work=pool.in_flight_tokens / pool.spec.capacity_tokens_per_s,
                queued_work=queued / pool.spec.capacity_tokens_per_s,
            ),
        )


_ANY = TraceRequest(0.0, 1, 1)
