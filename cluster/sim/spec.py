"""What is a replica to the simulator? Its schedulers' limits, its step times, how it starts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cluster.costmodel.speculation import Speculation
from cluster.errors import ConfigError
from cluster.sim.times import StepTimes


class Role(StrEnum):
    """Phases a pool's replicas run."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, kw_only=True)
class ReplicaSpec:
    """One replica of a pool. Limits are those of a data-parallel rank.

    `ranks` with `lockstep` (experts spread over them) take every step together, without it they
    are engines of their own. `stages` of a pipeline. `max_num_seqs` sequences and `chunk` tokens a
    step; `mixes`: prompts and decoding sequences share a step. `kv_blocks` of `block_tokens`.
    `by_priority`: the engine's queue honours classes. `join_steps`: whole steps a new request
    waits besides the one under way (schedulers that run ahead of the device). `lag_steps`: decode
    steps that its first token reaches the caller later, beside others. `start_s`: from
    asking for a replica to its first answer. `kv_bytes_per_token` travel from a prefill to a
    decode replica at `transfer_bytes_per_s`, after `transfer_s`.
    """

    times: StepTimes
    max_num_seqs: int
    chunk: int
    kv_blocks: int
    ranks: int = 1
    lockstep: bool = False
    stages: int = 1
    block_tokens: int = 16
    mixes: bool = True
    prefix_caching: bool = True
    by_priority: bool = False
    join_steps: int = 0
    lag_steps: float = 0.0
    speculation: Speculation | None = None
    role: Role = Role.BOTH
    start_s: float = 60.0
    devices: int = 1
    kv_bytes_per_token: float = 0.0
    transfer_bytes_per_s: float = 50e9
    transfer_s: float = 0.0

    def __post_init__(self) -> None:
        for name in (
            "max_num_seqs",
            "chunk",
            "kv_blocks",
            "ranks",
            "stages",
            "block_tokens",
            "devices",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(
                    source="replica",
                    field=name,
                    problem=f"is {getattr(self, name)}, it must be at least 1.",
                )
        if self.chunk * self.stages <= self.max_num_seqs * self.queries and self.mixes:
            raise ConfigError(
                source="replica",
                field="chunk",
                problem=f"of {self.chunk} tokens a step leaves no room for prompts beside "
                f"{self.max_num_seqs} decoding sequences.",
                fix="raise max_num_batched_tokens or lower max_num_seqs.",
            )

    @property
    def queries(self) -> int:
        """Tokens of a decoding sequence that a step scores."""
        return 1 if self.speculation is None else 1 + self.speculation.drafts

    @property
    def accepted(self) -> float:
        """Tokens of a decoding sequence that a step keeps, on average."""
        return 1.0 if self.speculation is None else self.speculation.accepted

    @property
    def growth_period(self) -> int:
        """Steps after which a decoding sequence needs another KV block (rounded down)."""
        return max(1, int(self.block_tokens / self.accepted))

    def blocks_for(self, tokens: int) -> int:
        """KV blocks that hold `tokens`."""
        return -(-tokens // self.block_tokens)

    def steps_for(self, tokens: int) -> int:
        """Decode steps that make `tokens` (at least 1)."""
        if self.speculation is None:
            return tokens if tokens > 1 else 1
        return max(1, -int(-tokens // self.accepted))

    def holds(self, prompt: int, output: int) -> bool:
        """Whether a rank's cache can hold such a sequence alone, to its end."""
        grown = -(-self.steps_for(output) // self.growth_period)
        return self.blocks_for(prompt + 1) + grown <= self.kv_blocks
