"""Small simulations for tests: step times by a plain formula, pools, workloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from cluster.pool_ledger import ReplicaLimits
from cluster.priority import Priority
from cluster.sim.rank import Rank
from cluster.sim.setup import GatewayRules, PoolSetup, Setup
from cluster.sim.spec import ReplicaSpec
from cluster.sim.times import Piece
from cluster.traces.request import TraceRequest


@dataclass(frozen=True)
class PlainTimes:
    """Seconds by step, sequence, held token and prompt token."""

    step_s: float = 0.01
    sequence_s: float = 1e-4
    context_s: float = 1e-7
    prompt_s: float = 1e-5

    def decode_s(self, sequences: int, context: float, routed: int) -> float:
        return self.step_s + sequences * self.sequence_s + context * self.context_s

    def mixed_s(
        self, sequences: int, context: float, pieces: Sequence[Piece], routed: int
    ) -> float:
        tokens = sum(piece.tokens for piece in pieces)
        return self.decode_s(sequences, context, routed) + tokens * self.prompt_s

    def lag_s(self, prompt_tokens: int, chunks: int) -> float:
        return 0.0


def spec(**changes) -> ReplicaSpec:
    values = {"times": PlainTimes(), "max_num_seqs": 8, "chunk": 64, "kv_blocks": 64}
    return ReplicaSpec(**{**values, "start_s": 5.0, **changes})


def pool(
    replicas=1, *, name="main", max_requests=1000, max_tokens=1e9, work=None, **of_spec
) -> PoolSetup:
    return PoolSetup(
        name=name,
        spec=spec(**of_spec),
        replicas=replicas,
        limits=ReplicaLimits(max_requests=max_requests, max_tokens=max_tokens),
        price_per_device_hour=2.0,
        work=work,
    )


def setup(*pools: PoolSetup, rules: GatewayRules | None = None, **more) -> Setup:
    return Setup(pools=pools or (pool(),), gateway=rules or GatewayRules(), **more)


AT_ONCE = GatewayRules(batch_wait_s=0.0, queue_wait_s=1e9, max_queued=10**6)
"""A gateway that holds nothing, refuses nothing and moves nothing (with one replica)."""


def request(at_s=0.0, prompt=20, output=10, priority=Priority.STANDARD, blocks=(), size=0):
    return TraceRequest(at_s, prompt, output, priority, tuple(blocks), size)


@st.composite
def workloads(draw, *, most=30, prompts=200, outputs=60, span_s=3.0) -> list[TraceRequest]:
    """Requests in order of time, some sharing prefixes of 16-token blocks."""
    count = draw(st.integers(1, most))
    ticks = st.integers(0, int(span_s * 1e4))
    times = sorted(draw(st.lists(ticks, min_size=count, max_size=count, unique=True)))
    made = []
    for index, tick in enumerate(times):
        # No step ends as another request comes, which either may be first: steps take multiples
        # of 1e-7 s.
        at_s = tick / 1e4 + 3.3e-5 + 3e-9 * index
        prompt = draw(st.integers(1, prompts))
        group = draw(st.integers(0, 3))
        blocks = tuple(1000 * group + place for place in range(prompt // 16)) if group else ()
        made.append(
            request(
                at_s,
                prompt,
                draw(st.integers(1, outputs)),
                draw(st.sampled_from(Priority)),
                blocks,
                16,
            )
        )
    return made


def check_books(rank: Rank, size: ReplicaSpec) -> None:
    """A rank's counters are those of its jobs."""
    private, shared, context = 0, set(), 0.0
    for job in rank.decoding:
        grown = rank._grown(job)
        private += job.held + grown
        shared |= set(job.shared)
        done = rank.step - job.joined_step
        context += job.prompt + job.generated + done * size.accepted
        tokens = job.prompt + job.at_step(rank.step)
        held = private_tokens(job.held + grown, job, size)
        assert held >= tokens - 1, "a sequence has fewer blocks than tokens"
    for job in rank.prefilling:
        private += job.held
        shared |= set(job.shared)
    assert rank.kv.used == private + len(shared)
    assert 0 <= rank.kv.used <= rank.kv.capacity
    assert rank.kv.used + rank.kv.idle <= rank.kv.capacity
    assert abs(rank.context - context) < 1e-6 * max(1.0, context)
    assert rank.running <= size.max_num_seqs
    everyone = list(rank.jobs())
    assert len(everyone) == len(set(everyone)) == rank.load


def private_tokens(blocks: int, job, size: ReplicaSpec) -> int:
    return (blocks + len(job.shared)) * size.block_tokens
