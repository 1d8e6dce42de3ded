"""How many steps has the engine made? What vLLM tells its own statistics after each of them.

A step that ends without a token (a part of a long prompt) counts as well. Stuck, the engine makes
none, whatever it is stuck in.
"""

from __future__ import annotations

from typing import Any


class Steps:
    """Counts the steps of vLLM's asynchronous engine since it was told of it."""

    def __init__(self, client: Any) -> None:
        self.count = 0
        statistics = getattr(client, "logger_manager", None)
        if statistics is None:  # switched off by an engine argument: tokens are all there is
            return
        record = statistics.record

        def counted(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            return record(*arguments, **named)

        statistics.record = counted
