"""How do requests and tokens travel between the gateway and an engine replica? The contract.

`serving.direct_link` carries it over a socket of the replica's; tests carry it over nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from serving.messages import EngineReply, EngineRequest, ReplicaReport


class LinkError(Exception):
    """The replica could not be reached or was lost while it answered."""


class ReplicaLink(Protocol):
    """Carries one request to one replica, and its replies back as they come.

    When the iterator is closed early, the engine aborts the request.
    """

    def observe(self, reports: Iterable[ReplicaReport]) -> None:
        """The replicas as the controller knows them now, of any pool."""
        ...

    def lose(self, replica_ids: Iterable[str]) -> None:
        """These are being ended: calls on them fail now, as those on a lost replica do."""
        ...

    def call(self, request: EngineRequest, *, replica_id: str) -> AsyncIterator[list[EngineReply]]:
        """Replies of the engine, several at once if they came at once. Raises LinkError.

        A stream ends with the payload `[DONE]`, any other answer is one dict.
        """
        ...
