"""Where did each request wait, and where was it served? A timeline for Perfetto, chrome://tracing.

Chrome Trace Event JSON: a process per replica (and one for the gateway), its rows are lanes. A
request's visit to a replica is a span `request N` that holds the spans

    queued   until it was handed to the replica (at a decode replica: also its cache's way there)
    prefill  from there to the first token: the engine's own queue and the steps of its prompt
    decode   from the first token to the last
    resumed  prompt and output so far again, then the rest of a stream whose replica was lost

Events of replicas are instants; requests in flight and ready replicas are counters. Times are the
engines', without the lag outside of steps. Memory and file are bounded: of the first `most`
requests all is kept, of later ones nothing.

Invariant: spans of a lane nest or are apart; times are whole microseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from cluster.sim.job import NEVER, Job

MOST_REQUESTS = 20_000
_GATEWAY = "gateway"
_READY = "ready"
_GONE = ("drains", "lost")
_Event = dict[str, Any]


@dataclass(slots=True)
class _Visit:
    """A request at a replica: its phases as (name, start), in order; each lasts to the next."""

    number: int
    where: str
    phases: list[tuple[str, float]]
    arguments: dict[str, int | str]
    end_s: float = NEVER

    @property
    def start_s(self) -> float:
        """When it began to wait for the replica."""
        return self.phases[0][1]


class ChromeTrace:
    """An `EventLog` that draws. `document` gives what to write into a file."""

    def __init__(self, *, most: int = MOST_REQUESTS) -> None:
        self._most = most
        self._seen = 0
        self._open: dict[int, _Visit] = {}
        self._since: dict[int, float] = {}
        self._visits: list[_Visit] = []
        self._happened: list[tuple[str, str, float]] = []

    @property
    def left_out(self) -> int:
        """Requests that came after the first `most`."""
        return max(0, self._seen - self._most)

    def dispatched(self, job: Job, replica_id: str, now_s: float) -> None:
        """See `EventLog`."""
        if not self._keeps(job):
            return
        since_s = self._since.pop(job.number, job.arrival_s)
        phase = "prefill"
        if job.first_s < NEVER:
            phase = "decode" if job.position >= job.target else "resumed"
        phases = [(phase, now_s)]
        if since_s < now_s:
            phases.insert(0, ("queued", since_s))
        self._open[job.number] = _Visit(
            job.number,
            replica_id,
            phases,
            {
                "prompt tokens": job.prompt,
                "output tokens": job.limit,
                "class": job.priority.value,
                "attempt": job.attempts,
            },
        )

    def first(self, job: Job, replica_id: str, now_s: float) -> None:  # noqa: ARG002
        """See `EventLog`."""
        visit = self._open.get(job.number)
        if visit is not None:
            visit.phases.append(("decode", now_s))

    def handed(self, job: Job, replica_id: str, now_s: float) -> None:  # noqa: ARG002
        """See `EventLog`."""
        visit = self._open.get(job.number)
        if visit is not None:
            self._close(visit, now_s, "handed over")
            self._since[job.number] = now_s

    def finished(self, job: Job, replica_id: str, now_s: float) -> None:  # noqa: ARG002
        """See `EventLog`."""
        visit = self._open.get(job.number)
        if visit is not None:
            self._close(visit, now_s, "finished")

    def moved(self, job: Job, replica_id: str, now_s: float) -> None:  # noqa: ARG002
        """See `EventLog`."""
        visit = self._open.get(job.number)
        if visit is not None:
            self._close(visit, now_s, "moved")
            self._since[job.number] = now_s

    def refused(self, job: Job, reason: str, now_s: float) -> None:
        """See `EventLog`."""
        if not self._keeps(job):
            return
        since_s = self._since.pop(job.number, job.arrival_s)
        end: dict[str, int | str] = {
            "end": reason,
            "prompt tokens": job.prompt,
            "class": job.priority.value,
        }
        self._visits.append(_Visit(job.number, _GATEWAY, [("refused", since_s)], end, end_s=now_s))

    def replica(self, replica_id: str, what: str, now_s: float) -> None:
        """See `EventLog`."""
        self._happened.append((replica_id, what, now_s))
        if what == "lost":
            for visit in [visit for visit in self._open.values() if visit.where == replica_id]:
                self._close(visit, now_s, "replica lost")
                self._since[visit.number] = now_s

    def document(self, *, end_s: float) -> dict[str, Any]:
        """The file's content; what is under way at `end_s` ends there."""
        for visit in list(self._open.values()):
            self._close(visit, max(end_s, visit.phases[-1][1]), "unfinished")
        places: dict[str, list[_Visit]] = {_GATEWAY: []}
        for replica_id, _, _ in self._happened:
            places.setdefault(replica_id, [])
        for visit in self._visits:
            places.setdefault(visit.where, []).append(visit)
        processes = {where: number for number, where in enumerate(places, start=1)}
        events: list[_Event] = []
        for where, visits in places.items():
            events.extend(_place(where, visits, process=processes[where]))
        events.extend(
            {
                "ph": "i",
                "s": "p",
                "name": what,
                "pid": processes[replica_id],
                "tid": 0,
                "ts": _microseconds(at_s),
            }
            for replica_id, what, at_s in self._happened
        )
        events.extend(_ready_counters(self._happened, process=processes[_GATEWAY]))
        return {
            "displayTimeUnit": "ms",
            "otherData": {
                "requests": min(self._seen, self._most),
                "requests left out": self.left_out,
            },
            "traceEvents": events,
        }

    def _keeps(self, job: Job) -> bool:
        self._seen = max(self._seen, job.number + 1)
        return job.number < self._most

    def _close(self, visit: _Visit, at_s: float, how: str) -> None:
        visit.end_s = at_s
        visit.arguments["end"] = how
        del self._open[visit.number]
        self._visits.append(visit)


def _place(where: str, visits: list[_Visit], *, process: int) -> Iterator[_Event]:
    """A replica's events, in lanes; and how many requests it had."""
    yield _name("process_name", where, process=process)
    yield {
        "ph": "M",
        "name": "process_sort_index",
        "pid": process,
        "tid": 0,
        "args": {"sort_index": process},
    }
    lanes = 0
    for lane, visit in _lanes(visits):
        if lane > lanes:
            lanes = lane
            yield _name("thread_name", f"lane {lane}", process=process, lane=lane)
        yield from _spans(visit, process=process, lane=lane)
    yield from _flight_counters(visits, process=process)


def _lanes(visits: Iterable[_Visit]) -> Iterator[tuple[int, _Visit]]:
    """Each visit in the lowest lane that is free when it begins; lanes count from 1."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    lanes = 0
    for visit in sorted(visits, key=lambda v: (v.start_s, v.number)):
        start = _microseconds(visit.start_s)
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if free:
            lane = heappop(free)
        else:
            lane = lanes = lanes + 1
        heappush(busy, (_microseconds(visit.end_s), lane))
        yield lane, visit


def _spans(visit: _Visit, *, process: int, lane: int) -> Iterator[_Event]:
    whole = [(f"request {visit.number}", visit.start_s, visit.end_s)]
    ends = [start_s for _, start_s in visit.phases[1:]] + [visit.end_s]
    phases = [(name, start, end) for (name, start), end in zip(visit.phases, ends, strict=True)]
    for name, start_s, end_s in whole + phases:
        start = _microseconds(start_s)
        event: _Event = {
            "ph": "X",
            "cat": "request",
            "name": name,
            "pid": process,
            "tid": lane,
            "ts": start,
            "dur": _microseconds(end_s) - start,
        }
        if name == whole[0][0]:
            event["args"] = visit.arguments
        yield event


def _flight_counters(visits: Iterable[_Visit], *, process: int) -> Iterator[_Event]:
    """Requests at a replica whenever their number changes."""
    changes: dict[int, int] = defaultdict(int)
    for visit in visits:
        if visit.where != _GATEWAY:
            handed_s = next(start_s for name, start_s in visit.phases if name != "queued")
            changes[_microseconds(handed_s)] += 1
            changes[_microseconds(visit.end_s)] -= 1
    here = 0
    for at, change in sorted(changes.items()):
        if change:
            here += change
            yield _counter("requests in flight", at, {"requests": here}, process=process)


def _ready_counters(
    happened: Iterable[tuple[str, str, float]], *, process: int
) -> Iterator[_Event]:
    """Ready replicas of each pool whenever their number changes."""
    ready: dict[str, set[str]] = defaultdict(set)
    for replica_id, what, at_s in happened:
        pool = replica_id.partition("/")[0]
        if what == _READY:
            ready[pool].add(replica_id)
        elif what in _GONE:
            ready[pool].discard(replica_id)
        else:
            continue
        counts = {name: len(some) for name, some in ready.items()}
        yield _counter("ready replicas", _microseconds(at_s), counts, process=process)


def _counter(name: str, at: int, values: dict[str, int], *, process: int) -> _Event:
    return {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": at, "args": values}


def _name(what: str, name: str, *, process: int, lane: int = 0) -> _Event:
    return {"ph": "M", "name": what, "pid": process, "tid": lane, "args": {"name": name}}


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
