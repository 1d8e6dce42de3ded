"""A reference: continuous batching with chunked prefill, event by event, on one rank.

Requests come by a Poisson process. A step carries all decoding sequences and, first come first
served, as many prompt tokens as the chunk has left; a prompt whose last token is done is a token
further, and decodes from the next step on. Step times are the cost model's own, tabulated, so that
what differs is only how requests meet each other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from cluster.costmodel.case import Case
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.steps import StepLoad, step_parts, total
from cluster.model.workload import Workload

_TABLE_TOKENS = 24


@dataclass(frozen=True)
class Observed:
    """What the requests of a run saw, after a warm-up; seconds."""

    ttft: np.ndarray
    tpot: np.ndarray
    gaps: np.ndarray
    finished_per_s: float


class StepTimes:
    """Seconds of a step of (decoding sequences, prompt tokens), interpolated in the latter."""

    def __init__(
        self, case: Case, coefficients: Coefficients, workload: Workload, *, chunk: int, batch: int
    ) -> None:
        tokens = np.unique(np.round(np.linspace(0, chunk, _TABLE_TOKENS)))
        self.tokens = np.insert(tokens, 1, 1.0)
        decode = np.arange(batch + 1.0)
        d, p = (x.ravel() for x in np.meshgrid(decode, self.tokens, indexing="ij"))
        load = StepLoad(
            decode=d,
            context=np.full_like(d, workload.isl + workload.osl / 2.0),
            prefill=p,
            prompt=np.full_like(d, workload.isl),
            routed=d + p,
            queries=np.ones_like(d),
            cached=np.zeros_like(d),
            offloaded=np.zeros_like(d),
        )
        seconds = total(step_parts(case, load, coefficients)).reshape(len(decode), -1)
        self.rows = [row.tolist() for row in np.maximum(seconds, seconds[:, :1])]

    def __call__(self, decode: int, prefill: int) -> float:
        row = self.rows[decode]
        if prefill == 0:
            return row[0]
        return float(np.interp(prefill, self.tokens, row))


def simulate(
    step_s: StepTimes,
    workload: Workload,
    *,
    rate: float,
    requests: int,
    batch: int,
    chunk: int,
    host_s: float,
    launch_s: float,
    drawn: bool = False,
    seed: int = 0,
) -> Observed:
    """Run `requests` arrivals at `rate` requests/s to the end.

    `host_s` before a request is there; `launch_s` each of its chunks is late, for itself alone.
    `drawn`: geometric output lengths.
    """
    rng = np.random.default_rng(seed)
    arrive = np.cumsum(rng.exponential(1.0 / rate, requests))
    mean = workload.osl - 1
    left = 1 + rng.geometric(1.0 / mean, requests) if drawn else np.full(requests, 1 + mean)
    tokens = (left - 1).astype(int)
    first, last, late = np.zeros(requests), np.zeros(requests), np.zeros(requests)
    gaps: list[float] = []
    waiting, decoding = deque[list[int]](), dict[int, int]()
    now, coming = 0.0, 0
    while coming < requests or waiting or decoding:
        while coming < requests and arrive[coming] + host_s <= now:
            waiting.append([coming, workload.isl, 0])
            coming += 1
        if not waiting and not decoding:
            now = arrive[coming] + host_s
            continue
        room, carried, done = chunk - len(decoding), 0, []
        for place, entry in enumerate(waiting):
            if room <= 0 or len(decoding) + place >= batch:
                break
            part = min(room, entry[1])
            entry[1] -= part
            entry[2] += 1
            room, carried = room - part, carried + part
            if entry[1] == 0:
                done.append(entry)
        step = step_s(len(decoding), carried)
        now += step
        gaps += [step] * len(decoding)
        for request in [r for r, count in decoding.items() if count == 1]:
            last[request] = now
            del decoding[request]
        for request in decoding:
            decoding[request] -= 1
        for request, _, chunks in done:
            waiting.popleft()
            first[request] = now
            late[request] = chunks * launch_s
            decoding[request] = int(tokens[request])
    settled = slice(requests // 10, requests - requests // 10)
    return Observed(
        ttft=(first + late - arrive)[settled],
        tpot=((last - first) / tokens)[settled],
        gaps=np.array(gaps[len(gaps) // 10 : -len(gaps) // 10]),
        finished_per_s=(settled.stop - settled.start)
        / (last[settled].max() - arrive[settled].min()),
    )
