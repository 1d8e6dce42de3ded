"""What does an engine do next, and for how long? Steps of one rank, or of several in lockstep.

Between two events a batch decodes many steps that differ only in their context, which grows by one
token a sequence and step: a *run*, whose steps take t_1 … t_n, nearly evenly spaced, so that k of
them take k t_1 + k (k - 1)/2 (t_n - t_1)/(n - 1). An arrival cuts a run short at the end of the
step under way. A step with prompt chunks is always taken alone.

With pp stages, w = min(pp, requests) micro-batches share the pipeline: each sequence gets a token
per round, and a round takes max(max T_w, sum T_w / pp): the longest pass, or what the stages carry.

Ranks in lockstep wait for the slowest; a step costs what its rank carries, experts what all send.
Invariants: time never goes back; a job leaves with exactly `limit` tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cluster.sim.job import NEVER, Job
from cluster.sim.rank import Chunk, Rank
from cluster.sim.spec import ReplicaSpec, Role
from cluster.sim.times import Piece

Gaps = Callable[[float, float], None]
"""Takes a gap between two tokens of a sequence, seconds, and how many there were."""

_AT_ONCE = 1 << 62  # a step by which every job is ready
_ROUNDING = 1e-9


class Engine:
    """`ranks` of a replica. `first`, `done`, `handed`: jobs since they were last collected.

    `first`: whose first token was made; `done`: complete; `handed`: prefilled, to be decoded
    elsewhere. `prompt_tokens`: of the prompts it has computed. `wake_s`: when the engine has to be
    looked at again.
    """

    __slots__ = (
        "_accepted",
        "_chunks",
        "_delta_s",
        "_gaps",
        "_queries",
        "_run",
        "_single",
        "_spec",
        "_stall_s",
        "_start_s",
        "_step_s",
        "done",
        "first",
        "frozen",
        "handed",
        "prompt_tokens",
        "ranks",
        "slowness",
        "steps",
        "wake_s",
    )

    def __init__(self, spec: ReplicaSpec, *, ranks: int, gaps: Gaps) -> None:
        self._spec = spec
        self._single = ranks == 1 and spec.stages == 1
        self._queries = spec.queries
        self._accepted = spec.accepted
        self._gaps = gaps
        self.ranks = [Rank(spec) for _ in range(ranks)]
        self.slowness = 1.0
        self.frozen = False
        self.steps = 0
        self.prompt_tokens = 0
        self.first: list[Job] = []
        self.done: list[Job] = []
        self.handed: list[Job] = []
        self.wake_s = NEVER
        self._chunks: list[list[Chunk]] = []
        self._run = 0
        self._start_s = 0.0
        self._step_s = 0.0
        self._delta_s = 0.0
        self._stall_s = 0.0

    @property
    def load(self) -> int:
        """Requests, running and waiting."""
        return sum(rank.load for rank in self.ranks)

    @property
    def step_beside_s(self) -> float:
        """Seconds of a decode step as the batch is, 0 for a sequence alone."""
        if self._decoding() <= 1:
            return 0.0
        return self._decode_s(0) * self.slowness

    def steps_by(self, now_s: float) -> int:
        """Steps that have ended, those of a run under way included."""
        return self.steps + self._ended(now_s)

    def silent_s(self, now_s: float) -> float:
        """How long it has had something to do and ended no step."""
        if not self.frozen and self.wake_s == NEVER:
            return 0.0
        return max(0.0, now_s - self._start_s - self._seconds(self._ended(now_s)))

    def submit(self, job: Job, now_s: float) -> None:
        """Take a job in, at the rank with the fewest."""
        ranks = self.ranks
        rank = ranks[0] if len(ranks) == 1 else min(ranks, key=_load)
        rank.enqueue(job)
        job.ready_step = self.steps
        if self.frozen:
            return
        if self.wake_s == NEVER:
            self._plan(now_s)
        elif now_s < self._start_s:  # the step under way is settled, the next one not begun
            self._plan(self._start_s)
        elif not self._run:
            job.ready_step += 1 + self._spec.join_steps
        elif self._spec.join_steps:
            job.ready_step += self._cut(now_s, steps=1 + self._spec.join_steps)
        else:
            self._join_next(job, now_s)

    def remove(self, job: Job, now_s: float) -> None:
        """Drop a job: the step under way ends first, then its place and its blocks are free."""
        rank = job.rank
        assert isinstance(rank, Rank)
        begun = now_s > self._start_s
        cuts = begun and self._run > 0 and job in rank.decoding
        if cuts:
            self._settle(self._steps_until(now_s))
        if job.rank is not None:  # else it was the step that completed it
            for chunks in self._chunks:
                chunks[:] = [chunk for chunk in chunks if chunk[0] is not job]
            rank.remove(job)
        if cuts or not (begun or self.frozen or self.wake_s == NEVER):
            self._plan(max(now_s, self._start_s))

    def wake(self, now_s: float) -> None:
        """The time `wake_s` has come: end what was under way and begin the next."""
        if self._run:
            self._settle(self._run)
        elif self._chunks:
            self._finish_mixed(now_s)
        self._plan(now_s)

    def slow_down(self, factor: float, now_s: float) -> None:
        """From the next step on, steps take `factor` times as long."""
        self.slowness = factor
        if self.wake_s != NEVER and now_s < self._start_s:
            self._plan(self._start_s)
        elif self._run:
            self._cut(now_s, steps=1)

    def halt(self) -> list[Job]:
        """Stop for good; the jobs it had, with the tokens they had got."""
        lost: list[Job] = []
        for rank in self.ranks:
            for job in list(rank.jobs()):
                rank.remove(job)
                lost.append(job)
        self._run, self._chunks, self.wake_s = 0, [], NEVER
        return lost

    def freeze(self, now_s: float) -> None:
        """Make no progress any more, but keep everything. The step under way is lost."""
        if self._run and now_s > self._start_s:
            self._settle(self._steps_until(now_s) - 1)
        self._run, self._chunks = 0, []
        self.wake_s, self.frozen = NEVER, True
        self._start_s = now_s

    def thaw(self, now_s: float) -> None:
        """Go on after `freeze`."""
        self.frozen = False
        self._plan(now_s)

    def _join_next(self, job: Job, now_s: float) -> None:
        """End the run with the step under way, and plan the step after it with the job.

        It is planned at once, though it begins later: until then others may join it.
        """
        taken = self._steps_until(now_s)
        if taken < self._run:
            self._settle(taken)
            job.ready_step = self.steps
            self._plan(self._start_s)
        else:
            job.ready_step += taken

    def _plan(self, now_s: float) -> None:
        ranks = self.ranks
        self._start_s = now_s
        self._run, self._chunks = 0, []
        some: list[Chunk] | bool = False
        ready = _AT_ONCE
        for rank in ranks:
            if rank.decoding or rank.prefilling:
                ready = self.steps
        for rank in ranks:
            if rank.decoding:
                preempted = rank.make_room()
                step = -1 if preempted else ready  # who was preempted does not come back at once
            else:
                step = ready
            found = rank.chunks(engine_step=step) if rank.waiting or rank.prefilling else []
            self._chunks.append(found)
            some = some or found
        if some:
            self._step_s = self._mixed_s() * self.slowness
            self.wake_s = now_s + self._step_s
            return
        self._chunks = []
        steps = _AT_ONCE
        for rank in ranks:
            if rank.decoding:
                steps = min(steps, rank.free_steps())
            if rank.waiting:
                head = rank.head()
                if head is not None and head.ready_step > self.steps:
                    steps = min(steps, head.ready_step - self.steps)
        if not self._decoding():
            self.wake_s = NEVER
            return
        first_s = self._decode_s(0) * self.slowness
        last_s = self._decode_s(steps - 1) * self.slowness if steps > 1 else first_s
        self._run, self._step_s = steps, first_s
        self._delta_s = (last_s - first_s) / (steps - 1) if steps > 1 else 0.0
        self.wake_s = now_s + self._seconds(steps)

    def _decoding(self) -> int:
        """Sequences that decode."""
        if self._single:
            return len(self.ranks[0].decoding)
        return sum(len(rank.decoding) for rank in self.ranks)

    def _seconds(self, steps: int) -> float:
        """Of the run's first `steps` steps."""
        return steps * self._step_s + 0.5 * steps * (steps - 1) * self._delta_s

    def _steps_until(self, now_s: float) -> int:
        """Steps of the run that have ended when the one under way at `now_s` has; at least 1."""
        passed = now_s - self._start_s - _ROUNDING
        if passed <= self._step_s:
            return 1
        half = 0.5 * self._delta_s
        if half < 1e-12:
            steps = math.ceil(passed / self._step_s)
        else:
            b = self._step_s - half
            steps = math.ceil((math.sqrt(b * b + 4.0 * half * passed) - b) / (2.0 * half))
        return max(1, min(self._run, steps))

    def _ended(self, now_s: float) -> int:
        """Steps of the run that have ended."""
        return self._steps_until(now_s) - 1 if self._run and now_s > self._start_s else 0

    def _cut(self, now_s: float, *, steps: int) -> int:
        """End the run `steps` step ends after `now_s`, if it is longer; how many it has then."""
        taken = min(self._run, self._steps_until(now_s) + steps - 1)
        if taken < self._run:
            self._run = taken
            self.wake_s = self._start_s + self._seconds(taken)
        return taken

    def _settle(self, steps: int) -> None:
        """Take `steps` steps of the run."""
        if not steps:
            return
        seconds = self._seconds(steps)
        batch = self._decoding()
        for rank in self.ranks:
            if rank.decoding:
                done = rank.advance(steps)
                if done:
                    self.done += done
        self._note_gaps(seconds / steps, batch, steps)
        self.steps += steps
        self._start_s += seconds

    def _note_gaps(self, step_s: float, batch: int, steps: int) -> None:
        if self._stall_s:
            self._gaps(step_s + self._stall_s, batch)
            self._stall_s = 0.0
            steps -= 1
        if steps:
            self._gaps(step_s, batch * steps)

    def _finish_mixed(self, now_s: float) -> None:
        spec = self._spec
        self.steps += 1
        mixes = spec.mixes
        if mixes:
            batch = self._decoding()
            if batch:
                self._note_gaps(self._step_s, batch, 1)
        else:
            self._stall_s += self._step_s
        for rank, chunks in zip(self.ranks, self._chunks, strict=True):
            if mixes and rank.decoding:
                self.done += rank.advance(1)
            if not chunks:
                continue
            for job in rank.finish_chunks(chunks):
                job.generated += 1
                if job.generated >= job.limit:
                    rank.release(job)
                    self.done.append(job)
                elif spec.role is Role.PREFILL:  # the token travels with the cache
                    rank.release(job)
                    self.handed.append(job)
                    continue
                else:
                    rank.decode(job)
                if job.first_s == NEVER:
                    self.prompt_tokens += job.prompt
                    job.first_s = now_s
                    self.first.append(job)
        self._chunks = []

    def _decode_s(self, ahead: int) -> float:
        """Seconds of a decode step, `ahead` steps from now."""
        if self._single:
            rank = self.ranks[0]
            batch = len(rank.decoding)
            context = rank.context + ahead * batch * self._accepted
            return self._spec.times.decode_s(batch, context, batch * self._queries)
        routed = self._decoding() * self._queries
        return max(
            self._round_s(rank, [], ahead=ahead, routed=routed)
            for rank in self.ranks
            if rank.decoding
        )

    def _mixed_s(self) -> float:
        """Seconds of the step whose chunks have been found."""
        spec = self._spec
        if self._single:
            rank, pieces = self.ranks[0], _pieces(self._chunks[0])
            batch = len(rank.decoding) if spec.mixes else 0
            routed = batch * self._queries
            for piece in pieces:
                routed += piece.tokens
            return spec.times.mixed_s(batch, rank.context if batch else 0.0, pieces, routed)
        routed = sum(
            (len(rank.decoding) * self._queries if spec.mixes else 0)
            + sum(tokens for _, tokens in chunks)
            for rank, chunks in zip(self.ranks, self._chunks, strict=True)
        )
        return max(
            self._round_s(rank, _pieces(chunks), ahead=0, routed=routed)
            for rank, chunks in zip(self.ranks, self._chunks, strict=True)
            if chunks or (spec.mixes and rank.decoding)
        )

    def _round_s(self, rank: Rank, pieces: list[Piece], *, ahead: int, routed: int) -> float:
        """One token for every decoding sequence of a rank, over all micro-batches."""
        spec, times = self._spec, self._spec.times
        batch = len(rank.decoding) if spec.mixes or not pieces else 0
        context = rank.context + ahead * batch * self._accepted
        waves = rank.waves()
        share, held = -(-batch // waves), context / waves
        plain = times.decode_s(share, held, -(-routed // waves)) if batch else 0.0
        if not pieces:
            return plain
        passes = [
            times.mixed_s(share if batch else 0, held if batch else 0.0, group, -(-routed // waves))
            for group in _packed(pieces, spec.chunk)
        ]
        rest = max(0, waves - len(passes)) * plain
        return max(*passes, (sum(passes) + rest) / spec.stages)


def _load(rank: Rank) -> int:
    return rank.load


def _pieces(chunks: Sequence[Chunk]) -> list[Piece]:
    return [Piece(tokens, job.position, job.target) for job, tokens in chunks]


def _packed(pieces: list[Piece], chunk: int) -> list[list[Piece]]:
    """Prompt chunks in micro-batches of at most `chunk` tokens each."""
    groups: list[list[Piece]] = [[]]
    room = chunk
    for piece in pieces:
        tokens, start = piece.tokens, piece.start
        while tokens > room:
            if room:
                groups[-1].append(Piece(room, start, piece.prompt))
                tokens, start = tokens - room, start + room
            groups.append([])
            room = chunk
        groups[-1].append(Piece(tokens, start, piece.prompt))
        room -= tokens
    return groups
