"""Which policies are there? One line each; the configuration and the header offer them at once.

A policy gets a prompt and the tokens that may stay of it, and says what stays. It is called again
with another number where the real prompt turns out longer or shorter than its pieces told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from serving.long_input.memory import memory
from serving.long_input.middle import middle_out
from serving.long_input.prompt import LongPrompt, Selection
from serving.long_input.rerank import rerank
from serving.long_input.window import sliding_window

Policy = Callable[[LongPrompt, int], Selection]

REJECT = "reject"
MEMORY = "memory"
POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "sliding_window": sliding_window,
        "middle_out": middle_out,
        "rerank": rerank,
        MEMORY: memory,
    }
)
CHOICES = (REJECT, *POLICIES)
