"""One scheduler: who is in the batch, who waits, whose KV cache has to go?

Continuous batching with chunked prefill as in vLLM V1: a step takes one token (or the drafts) of
every decoding sequence and fills what is left of `chunk` with prompts, those begun first; a waiting
request is admitted while there is a place in the batch and the KV cache holds its whole prompt.
Decoding sequences take blocks as they grow; when there are none, the one admitted last (of the
lowest class) is preempted and later computed again.

Sequences are not touched per step: those that take a block when the counter is k modulo the growth
period are counted in `_growing[k]`, and ends are a heap.

Invariants: blocks in use are the sum of what jobs hold; every job is waiting, prefilling or
decoding, in one of these only.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from cluster.sim.job import Job
from cluster.sim.kv_cache import KvCache
from cluster.sim.spec import ReplicaSpec

Chunk = tuple[Job, int]


class Rank:
    """A data-parallel rank. `step` counts decode steps, `output_tokens` what they made."""

    __slots__ = (
        "_accepted",
        "_ends",
        "_growing",
        "_order",
        "_period",
        "_queries",
        "_queue",
        "_spec",
        "context",
        "decoding",
        "kv",
        "output_tokens",
        "preemptions",
        "prefilling",
        "step",
        "waiting",
    )

    def __init__(self, spec: ReplicaSpec) -> None:
        self._spec = spec
        self._period = spec.growth_period
        self._queries = spec.queries if spec.mixes else 0  # tokens of a step with prompts
        self._accepted = spec.accepted
        self._growing = [0] * self._period
        self._queue: list[tuple[int, int, int, Job]] = []
        self._ends: list[tuple[int, int, Job]] = []
        self._order = 0
        self.kv = KvCache(spec.kv_blocks)
        self.decoding: dict[Job, int] = {}  # in order of admission; the value is that order
        self.prefilling: list[Job] = []
        self.waiting = 0
        self.context = 0.0
        self.step = 0
        self.preemptions = 0
        self.output_tokens = 0.0

    @property
    def load(self) -> int:
        """Requests, running and waiting."""
        return len(self.decoding) + len(self.prefilling) + self.waiting

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self.decoding) + len(self.prefilling)

    def jobs(self) -> Iterator[Job]:
        """All of them."""
        yield from self.decoding
        yield from self.prefilling
        yield from (entry[-1] for entry in self._queue if self._waits(entry))

    def enqueue(self, job: Job) -> None:
        """Let a job wait; one that was here before keeps its place."""
        job.rank = self
        job.queued = True
        self.waiting += 1
        key = job.class_rank if self._spec.by_priority else 0
        self._order += 1
        job.place = self._order
        heappush(self._queue, (key, job.number, job.place, job))

    def head(self) -> Job | None:
        """The job that is admitted next."""
        queue = self._queue
        while queue:
            if self._waits(queue[0]):
                return queue[0][-1]
            heappop(queue)
        return None

    def remove(self, job: Job) -> None:
        """Take a job out, wherever it stands, and free what it holds."""
        if job.queued:
            job.queued = False
            self.waiting -= 1
        elif job in self.decoding:
            self._leave(job)
        else:
            self.prefilling.remove(job)
            self._free(job)
        job.rank = None

    def chunks(self, *, engine_step: int) -> list[Chunk]:
        """Prompts of the next step; admits jobs that were ready at `engine_step`.

        A job that arrives with its KV cache joins the decoding ones at once. Call `make_room`
        before: what the next step grows by stays free.
        """
        spec, prefilling = self._spec, self.prefilling
        budget = spec.chunk * self.waves() - len(self.decoding) * self._queries
        found: list[Chunk] = []
        for job in prefilling:
            tokens = min(job.target - job.position, budget)
            if tokens <= 0:
                break
            found.append((job, tokens))
            budget -= tokens
        while self.waiting and budget > 0 and self.running < spec.max_num_seqs:
            head = self.head()
            if head is None or head.ready_step > engine_step or not self._admit(head):
                break
            if head.position >= head.target:
                self._join(head)
                continue
            tokens = min(head.target - head.position, budget)
            found.append((head, tokens))
            budget -= tokens
        return found

    def waves(self) -> int:
        """Micro-batches in the pipeline."""
        stages = self._spec.stages
        return 1 if stages == 1 else max(1, min(stages, self.running + self.waiting))

    def make_room(self) -> list[Job]:
        """Preempt until one more step's blocks are there; those preempted wait again."""
        gone: list[Job] = []
        kv = self.kv
        while self._growing[(self.step + 1) % self._period] > kv.capacity - kv.used:
            job = self._victim()
            if job in self.decoding:
                self._leave(job)
            else:
                self.prefilling.remove(job)
                self._free(job)
            job.preempted += 1
            self.preemptions += 1
            job.restart()
            self.enqueue(job)
            gone.append(job)
        return gone

    def free_steps(self) -> int:
        """Decode steps until a sequence ends or blocks run out; at least 1 after `make_room`."""
        ends = self._ends
        while ends and not self._is_current(ends[0]):
            heappop(ends)
        steps = ends[0][0] - self.step
        available, batch, period = self.kv.available, len(self.decoding), self._period
        if batch * -(-steps // period) <= available:
            return steps
        whole = available // batch
        left, extra = available - whole * batch, 0
        while extra < period - 1:
            grown = self._growing[(self.step + 1 + extra) % period]
            if grown > left:
                break
            left -= grown
            extra += 1
        return max(1, min(steps, whole * period + extra))

    def advance(self, steps: int) -> list[Job]:
        """Take decode steps; the jobs that are done, which have left."""
        growth = self._growth(steps)
        if growth:
            self.kv.take(growth)
        made = steps * len(self.decoding) * self._accepted
        self.context += made
        self.output_tokens += made
        self.step += steps
        ends, done = self._ends, []
        while ends and ends[0][0] <= self.step:
            entry = heappop(ends)
            if self._is_current(entry):
                job = entry[2]
                self._leave(job)
                job.rank = None
                done.append(job)
        return done

    def finish_chunks(self, found: list[Chunk]) -> list[Job]:
        """Count prompt tokens as done; the jobs whose prompt is complete, not yet decoding."""
        complete: list[Job] = []
        for job, tokens in found:
            job.position += tokens
            job.chunks += 1
            if job.position >= job.target:
                complete.append(job)
        if complete:
            gone = set(complete)
            self.prefilling = [job for job in self.prefilling if job not in gone]
        return complete

    def decode(self, job: Job) -> None:
        """Let a job whose prompt is complete go on token by token."""
        self._share_prompt(job)
        self._join(job)

    def release(self, job: Job) -> None:
        """Free the blocks of a job that is complete and not decoding."""
        self._share_prompt(job)
        self._free(job)
        job.rank = None

    def _waits(self, entry: tuple[int, int, int, Job]) -> bool:
        """Whether an entry of the queue still stands: a job may have left, and come back."""
        job = entry[-1]
        return job.queued and job.rank is self and job.place == entry[2]

    def _admit(self, job: Job) -> bool:
        spec, kv = self._spec, self.kv
        blocks = spec.blocks_for(job.target + 1)
        hit: tuple[int, ...] = ()
        per_hash = 0
        if job.blocks and spec.prefix_caching:
            per_hash = max(1, job.block_tokens // spec.block_tokens)
            # The last token is computed in any case: its logits are what is asked for.
            usable = (job.prompt - 1) // job.block_tokens
            hit = job.blocks[: kv.hits(job.blocks[:usable])]
        own = blocks - len(hit) * per_hash
        if own + kv.blocks_woken(hit) > kv.available - self._growth(1):
            return False
        if hit:
            kv.hold(hit)
            cached = len(hit) * job.block_tokens
            if job.position < cached:
                job.position = job.cached = cached
        kv.take(own)
        job.held, job.shared = own, hit
        job.queued = False
        self.waiting -= 1
        heappop(self._queue)
        if job.position < job.target:
            self.prefilling.append(job)
        return True

    def _share_prompt(self, job: Job) -> None:
        if not job.blocks or not self._spec.prefix_caching:
            return
        per_hash = max(1, job.block_tokens // self._spec.block_tokens)
        whole = job.blocks[len(job.shared) : job.prompt // job.block_tokens]
        room = job.held // per_hash
        fresh = self.kv.share(whole[:room])
        job.held -= len(fresh) * per_hash
        job.shared = (*job.shared, *fresh)

    def _join(self, job: Job) -> None:
        spec, step = self._spec, self.step
        tokens = job.prompt + job.generated
        slack = spec.blocks_for(job.target + 1) * spec.block_tokens - tokens
        job.joined_step = step
        job.steps = spec.steps_for(job.limit - job.generated)
        job.end_step = step + job.steps
        key = (step + 1 + min(int(slack / self._accepted), self._period - 1)) % self._period
        job.growth_key = key
        self._growing[key] += 1
        self._order += 1
        self.decoding[job] = self._order
        self.context += tokens
        heappush(self._ends, (job.end_step, self._order, job))

    def _is_current(self, entry: tuple[int, int, Job]) -> bool:
        return self.decoding.get(entry[2]) == entry[1]

    def _leave(self, job: Job) -> None:
        done = self.step - job.joined_step
        self.context -= job.prompt + job.generated + done * self._accepted
        job.generated = job.at_step(self.step)
        job.held += self._grown(job)
        self._growing[job.growth_key] -= 1
        del self.decoding[job]
        if not self.decoding:
            self.context = 0.0  # and with it the rounding of the sums
        self._free(job)

    def _grown(self, job: Job) -> int:
        """Blocks a decoding job has taken since it joined."""
        key, period = job.growth_key, self._period
        return (self.step - key) // period - (job.joined_step - key) // period

    def _free(self, job: Job) -> None:
        self.kv.give(job.held)
        job.held = 0
        if job.shared:
            per_hash = max(1, job.block_tokens // self._spec.block_tokens)
            self.kv.drop(job.shared, blocks=per_hash)
            job.shared = ()

    def _growth(self, steps: int) -> int:
        """Blocks that the decoding jobs take in the next steps."""
        if steps == 1:
            return self._growing[(self.step + 1) % self._period]
        whole, rest = divmod(steps, self._period)
        blocks = whole * len(self.decoding)
        if rest:
            growing, period, at = self._growing, self._period, self.step + 1
            for offset in range(rest):
                blocks += growing[(at + offset) % period]
        return blocks

    def _victim(self) -> Job:
        """Who is preempted: the lowest class where classes count, of these the last admitted."""
        if self.prefilling and not self._spec.by_priority:
            return self.prefilling[-1]
        if not self._spec.by_priority:
            return next(reversed(self.decoding))
        everyone = [*self.decoding, *self.prefilling]
        worst = max(job.class_rank for job in everyone)
        return next(job for job in reversed(everyone) if job.class_rank == worst)
