"""What does each replica owe this gateway, and when was it last heard?

A replica owes a token from the moment it is asked for something until it says something, be it to
another request. What was lost with a connection is owed still: a frozen replica loses its
connections as well.

Invariants: nothing is owed where nothing was asked since the last token; nobody is charged with the
time in which the gateway itself stood still.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass

from serving.messages import EngineError, EngineReply, EngineRequest, Owed, ReplicaReport
from serving.replica_link import LinkError, ReplicaLink

# How long the name of a replica that no directive has any more is kept, with what it owes.
REMEMBER_S = 60.0


@dataclass
class _Account:
    asked: int = 0  # calls under way
    since_s: float | None = None  # a token has been owed
    heard_s: float | None = None  # the last token
    known_s: float = 0.0  # named by a directive


class Watch:
    """One gateway's account with every replica. `clock`: seconds, any."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._last_s = clock()

    def know(self, replica_ids: Iterable[str]) -> None:
        """These are there, as the controller says; those long gone are forgotten."""
        now_s = self._clock()
        for replica_id in replica_ids:
            self._account(replica_id).known_s = now_s
        self._accounts = {
            name: account
            for name, account in self._accounts.items()
            if account.asked or now_s - account.known_s <= REMEMBER_S
        }

    def ask(self, replica_id: str) -> None:
        """A call begins."""
        account = self._account(replica_id)
        account.asked += 1
        if account.since_s is None:
            account.since_s = self._clock()

    def hear(self, replica_id: str) -> None:
        """A token has come. What else is under way owes the next one from now on."""
        account = self._account(replica_id)
        account.heard_s = account.since_s = self._clock()

    def end(self, replica_id: str, *, lost: bool) -> None:
        """A call is over. `lost`: with its connection, so that what it owed is owed still."""
        account = self._account(replica_id)
        account.asked -= 1
        if not account.asked and not lost:
            account.since_s = None

    def beat(self, expected_s: float) -> None:
        """Time has gone on by `expected_s`, or by more if this process stood still meanwhile.

        Less than another `expected_s` is no standing still.
        """
        now_s = self._clock()
        late_s = now_s - self._last_s - expected_s
        self._last_s = now_s
        if late_s < expected_s:
            return
        for account in self._accounts.values():
            if account.since_s is not None:
                account.since_s = min(now_s, account.since_s + late_s)
            if account.heard_s is not None:
                account.heard_s = min(now_s, account.heard_s + late_s)

    def heard(self, replica_id: str) -> bool:
        """Whether it has ever said a token to this gateway."""
        account = self._accounts.get(replica_id)
        return account is not None and account.heard_s is not None

    def silent_s(self, replica_id: str) -> float:
        """Seconds since its last token, infinite if there was none."""
        account = self._accounts.get(replica_id)
        if account is None or account.heard_s is None:
            return math.inf
        return self._clock() - account.heard_s

    def owed(self) -> dict[str, Owed]:
        """What is owed by each replica that was ever asked."""
        now_s = self._clock()
        return {
            name: Owed(
                owed_s=0.0 if account.since_s is None else now_s - account.since_s,
                silent_s=self.silent_s(name),
            )
            for name, account in self._accounts.items()
        }

    def _account(self, replica_id: str) -> _Account:
        return self._accounts.setdefault(replica_id, _Account(known_s=self._clock()))


class WatchedLink:
    """A `ReplicaLink` that tells a watch of every call."""

    def __init__(self, link: ReplicaLink, watch: Watch) -> None:
        self._link, self._watch = link, watch

    def observe(self, reports: Iterable[ReplicaReport]) -> None:
        """See `ReplicaLink.observe`."""
        self._link.observe(reports)

    def lose(self, replica_ids: Iterable[str]) -> None:
        """See `ReplicaLink.lose`."""
        self._link.lose(replica_ids)

    async def call(
        self, request: EngineRequest, *, replica_id: str
    ) -> AsyncIterator[list[EngineReply]]:
        """See `ReplicaLink.call`."""
        self._watch.ask(replica_id)
        lost = False
        try:
            replies = self._link.call(request, replica_id=replica_id)
            async with aclosing(replies) as batches:  # type: ignore[type-var]
                async for batch in batches:
                    # An error says nothing about the engine behind it.
                    if not isinstance(batch[0], EngineError):
                        self._watch.hear(replica_id)
                    yield batch
        except LinkError:
            lost = True
            raise
        finally:
            self._watch.end(replica_id, lost=lost)
