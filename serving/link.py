"""The link over Ray Serve's handles; see `serving.replica_link` for the contract.

The gateway has chosen the replica, and a Serve request router that only obeys (`PinnedRouter`)
carries the choice through.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from ray.exceptions import RayTaskError
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import FIFOMixin, PendingRequest, RequestRouter, RunningReplica

from serving.messages import EngineError, EngineReply, EngineRequest
from serving.replica_link import LinkError


class ServeLink:
    """A `ReplicaLink` over a Serve handle.

    `reach_s`: how long Serve may take to hand the request to the replica. Serve itself would wait
    for ever for a replica that has just gone.
    """

    def __init__(self, handle: DeploymentHandle, *, reach_s: float) -> None:
        self._handle = handle.options(method_name="generate", stream=True)
        self._reach_s = reach_s

    async def call(
        self, request: EngineRequest, *, replica_id: str
    ) -> AsyncIterator[list[EngineReply]]:
        """See `ReplicaLink.call`."""
        context = self._handle.choose_replica(replica_id=replica_id)
        try:
            async with asyncio.timeout(self._reach_s):
                selection = await context.__aenter__()
        except Exception as error:
            raise LinkError(f"replica {replica_id} cannot be reached: {_short(error)}") from error
        try:
            _must_be(replica_id, selection.replica_id)
            replies = self._handle.dispatch(selection, request)
            async with aclosing(_cancelling(replies)) as messages:
                async for message in messages:
                    yield message
        except LinkError:
            raise
        except RayTaskError as error:
            # The replica is well; its code failed on this request.
            yield [EngineError(status=500, message=_short(error), retryable=True)]
        except Exception as error:
            raise LinkError(f"replica {replica_id} was lost: {_short(error)}") from error
        finally:
            await context.__aexit__(None, None, None)


def _must_be(wanted: str, chosen: str) -> None:
    if chosen != wanted:
        raise LinkError(f"replica {wanted} is no longer there")


async def _cancelling(replies: Any) -> AsyncGenerator[list[EngineReply], None]:
    """The response generator, cancelled on the replica if it is closed before its end."""
    finished = False
    try:
        async for message in replies:
            yield message
        finished = True
    finally:
        if not finished:
            replies.cancel()


def _short(error: BaseException) -> str:
    """The last line that says something: Ray's errors carry whole tracebacks in their text."""
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), repr(error))


class PinnedRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]  # Ray's are untyped
    """A Serve request router that sends a request where the gateway said.

    If that replica has gone, any other is named: the caller sees the difference and decides anew
    (naming none would make Serve wait).
    """

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Serve's hook: ranks of candidates, the first rank tried first."""
        wanted = pending_request.kwargs.get("replica_id") if pending_request else None
        pinned = [r for r in candidate_replicas if r.replica_id.unique_id == wanted]
        return [pinned or candidate_replicas]
