"""What has an answer used? Counted from the engine's own usage, or by its events if it broke off.

The engine is asked for a stream's usage whether the caller wants it or not; the event that tells it
goes no further unless the caller has asked for it too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from serving.messages import DONE, USAGE_ALONE, EngineError, EngineReply


class Meter:
    """Counts one answer. `prompt`: tokens, as the gateway counted them. `shown`: see above."""

    def __init__(self, *, prompt: int, shown: bool) -> None:
        self._counted, self._shown = prompt, shown
        self._events = 0
        self._usage: dict[str, Any] | None = None

    @property
    def usage(self) -> dict[str, Any] | None:
        """The engine's own account, None before it has given one."""
        return self._usage

    @property
    def prompt(self) -> int:
        """Tokens of the prompt; 0 before the engine has said anything."""
        if self._usage is not None:
            return int(self._usage.get("prompt_tokens") or 0)
        return self._counted if self._events else 0

    @property
    def output(self) -> int:
        """Tokens generated."""
        if self._usage is not None:
            return int(self._usage.get("completion_tokens") or 0)
        return self._events

    def hear(self, replies: Sequence[EngineReply]) -> list[EngineReply]:
        """Count replies; returns those that are for the caller."""
        return [reply for reply in replies if self._passes(reply)]

    def _passes(self, reply: EngineReply) -> bool:
        if isinstance(reply, EngineError) or reply == DONE:
            return True
        if isinstance(reply, dict):
            self._usage = reply.get("usage")
            self._events += 1
            return True
        if USAGE_ALONE in reply:
            self._usage = json.loads(reply).get("usage")
            return self._shown
        self._events += 1
        return True
