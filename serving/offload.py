"""How does a large request body not hold everyone's streams up? It is worked on off the loop.

Parsing and tokenising cost time in proportion to the tokens: small bodies are done in place, where
a thread would cost more than it saves; large ones queue for one thread, so that they never take
more than one core from the streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

INLINE_BYTES = 2048

ResultT = TypeVar("ResultT")


class OffLoop:
    """One worker thread beside the event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenise")

    async def run(self, function: Callable[[], ResultT], *, size_bytes: int) -> ResultT:
        """The function's result; computed in place if the body is small."""
        if size_bytes <= INLINE_BYTES:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)
