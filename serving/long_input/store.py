"""Where are the segments of earlier turns kept, and for how long? In this gateway's memory.

Bounds: conversations in all, tokens in each, and time since a conversation was last used. Where
there are too many, whoever holds the most gives up the one that was used longest ago, so that
nobody can push the others out. A conversation belongs to its owner, the name of the API key: under
another key the same id is another conversation.

Several gateways remember apart. To share, give them another `SegmentStore`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from serving.long_input.prompt import Segment


@dataclass(frozen=True)
class Conversation:
    """Whose, and which. `owner`: an API key's name, empty where there are no keys."""

    owner: str
    id: str


class SegmentStore(Protocol):
    """What remembers conversations; another one may be a database."""

    async def recall(self, conversation: Conversation) -> tuple[Segment, ...]:
        """What is known of it, oldest first; nothing of one that is new or forgotten."""
        ...

    async def remember(
        self, conversation: Conversation, segments: Iterable[tuple[Segment, int]]
    ) -> None:
        """Add segments and their tokens; those that are there already stay where they are."""
        ...


@dataclass
class _Kept:
    used_s: float
    tokens: int = 0
    segments: dict[Segment, int] = field(default_factory=dict)


class LocalStore:
    """Segments in the memory of this process. `ttl_s`: seconds after its last use."""

    def __init__(
        self,
        *,
        conversations: int,
        tokens: int,
        ttl_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._most, self._tokens, self._ttl_s = conversations, tokens, ttl_s
        self._clock = clock
        # By owner, then by id; what was used last stands last.
        self._kept: dict[str, OrderedDict[str, _Kept]] = {}

    def __len__(self) -> int:
        """Conversations that are kept."""
        return sum(map(len, self._kept.values()))

    async def recall(self, conversation: Conversation) -> tuple[Segment, ...]:
        """See `SegmentStore`."""
        self._expire()
        own = self._kept.get(conversation.owner, OrderedDict())
        found = own.get(conversation.id)
        if found is None:
            return ()
        found.used_s = self._clock()
        own.move_to_end(conversation.id)
        return tuple(found.segments)

    async def remember(
        self, conversation: Conversation, segments: Iterable[tuple[Segment, int]]
    ) -> None:
        """See `SegmentStore`."""
        self._expire()
        now_s = self._clock()
        own = self._kept.setdefault(conversation.owner, OrderedDict())
        kept = own.setdefault(conversation.id, _Kept(now_s))
        kept.used_s = now_s
        own.move_to_end(conversation.id)
        for segment, tokens in segments:
            if segment not in kept.segments:
                kept.segments[segment] = tokens
                kept.tokens += tokens
        while kept.tokens > self._tokens:
            oldest = next(iter(kept.segments))
            kept.tokens -= kept.segments.pop(oldest)
        while len(self) > self._most:
            self._drop_oldest(max(self._kept, key=lambda owner: len(self._kept[owner])))

    def _expire(self) -> None:
        since_s = self._clock() - self._ttl_s
        for owner in list(self._kept):
            while owner in self._kept and next(iter(self._kept[owner].values())).used_s < since_s:
                self._drop_oldest(owner)

    def _drop_oldest(self, owner: str) -> None:
        self._kept[owner].popitem(last=False)
        if not self._kept[owner]:
            del self._kept[owner]
