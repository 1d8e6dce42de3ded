"""When does a request come, how long is it, and which prompts does it share blocks with?"""

from __future__ import annotations

from typing import NamedTuple

from cluster.priority import Priority

MOST_TOKENS = 10**9  # no prompt or output reaches it; arrays hold 64 bits


class TraceRequest(NamedTuple):
    """A request as a trace tells it.

    `arrival_s` from the start of the trace, never falling from one request to the next.
    `prompt_tokens`, `output_tokens`: at least 1; the output is what will be generated, which no
    router knows. `blocks`: hashes of the prompt's leading whole blocks of `block_tokens` tokens
    each, where a hash stands for the block and all before it (equal hashes: equal prefixes).
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    priority: Priority = Priority.STANDARD
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0
