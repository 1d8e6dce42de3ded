"""Speculative decoding: how many tokens does a step keep, and what do drafts cost?

With m drafted tokens, each accepted with probability a while all before it were, a step keeps
(1 - a^(m+1)) / (1 - a) tokens on average (Leviathan, Kalman, Matias 2023, eq. 1). Drafting costs
m times `draft_share` of a target step: the draft model's share of weights, or a few percent for
heads trained with the model (multi-token prediction).
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """`drafts` tokens per step, each accepted with probability `acceptance` in [0, 1).

    `draft_share`: time of one drafted token over a step of the target. Raises InputError.
    """

    drafts: int
    acceptance: float
    draft_share: float = 0.02

    def __post_init__(self) -> None:
        if self.drafts < 1:
            raise InputError(f"{self.drafts} drafted tokens: speculation needs at least 1.")
        if not 0.0 <= self.acceptance < 1.0:
            raise InputError(
                f"acceptance {self.acceptance} is no probability below 1. "
                "Fix: measure it on your traffic; 0.6 to 0.8 is common."
            )
        if self.draft_share < 0.0:
            raise InputError(f"draft share {self.draft_share} is negative.")

    @classmethod
    def keeping(cls, tokens: float, *, drafts: int, draft_share: float) -> Speculation:
        """With the acceptance at which a step keeps `tokens` on average, in [1, 1 + drafts)."""
        low, high = 0.0, 1.0
        for _ in range(50):  # `accepted` rises with the acceptance
            middle = (low + high) / 2.0
            kept = sum(middle**power for power in range(drafts + 1))
            low, high = (middle, high) if kept < tokens else (low, middle)
        return cls(drafts=drafts, acceptance=low, draft_share=draft_share)

    @property
    def accepted(self) -> float:
        """Tokens a step keeps on average, at least 1."""
        a = self.acceptance
        return (1.0 - a ** (self.drafts + 1)) / (1.0 - a)
