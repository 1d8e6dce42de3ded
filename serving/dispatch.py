"""Where does a request go, and when? One dispatcher per pool and gateway.

The books are `cluster.pool_ledger.PoolLedger`, which the simulator keeps as well; here are the
clock, and callers that wait for their turn.

Invariant: a slot taken is given back exactly once (`Slot.release`), whatever ends the wait for it.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict

from cluster.batching import BatchRules
from cluster.pool_ledger import Elsewhere, PoolLedger, ReplicaLimits
from cluster.prefix_index import PrefixIndex
from cluster.priority import Priority
from cluster.waiting_line import Ask, Ticket, WaitingLine
from serving.messages import PoolLoad, ReplicaReport

_AT_ONCE = BatchRules()


class Slot:
    """A request's place on a replica."""

    def __init__(
        self, *, replica_id: str, tokens: float, work: float, release: Callable[[Slot], None]
    ) -> None:
        self.replica_id = replica_id
        self.tokens = tokens
        self.work = work
        self._release = release
        self._held = True

    def release(self) -> None:
        """Give the place back; a second call does nothing."""
        if self._held:
            self._held = False
            self._release(self)


class Dispatcher:
    """Placement of one pool's requests by one gateway. `clock`: that of the replicas' reports."""

    def __init__(
        self,
        *,
        pool: str,
        limits: ReplicaLimits,
        line: WaitingLine,
        clock: Callable[[], float],
        draw: Callable[[], float] = random.random,
        batches: BatchRules = _AT_ONCE,
        vip_slots: int = 0,
        prefixes: PrefixIndex | None = None,
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._ledger = PoolLedger(
            limits=limits,
            line=line,
            draw=draw,
            batches=batches,
            vip_slots=vip_slots,
            prefixes=prefixes,
        )
        self._batch_due: asyncio.TimerHandle | None = None
        self._turns: dict[int, asyncio.Future[Slot]] = {}

    @property
    def ready(self) -> int:
        """Replicas that may be chosen."""
        return self._ledger.ready

    def line_full_for(self, priority: Priority) -> bool:
        """Whether the waiting line takes no more of this class."""
        return self._ledger.line.full_for(priority)

    def observe(self, reports: Sequence[ReplicaReport], elsewhere: Elsewhere | None = None) -> None:
        """The pool's replicas as the controller knows them now, and the other gateways' calls."""
        ours = (report for report in reports if report.pool == self._pool)
        self._ledger.observe(ours, elsewhere)
        self._place_waiting()

    def suspect(self, replica_id: str) -> None:
        """The replica was lost: choose it again only after a newer report."""
        self._ledger.suspect(replica_id, self._clock())

    def arrived(self, tokens: float, work: float) -> None:
        """Count a request's predicted tokens and work as arrived (refused ones too)."""
        self._ledger.arrived(tokens, work, self._clock())

    async def place(self, ask: Ask) -> Slot:
        """A slot on a replica, waiting in line if need be. Cancel to leave the line."""
        ticket = self._ledger.line.put(ask, now_s=self._clock())
        turn: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._turns[ticket.order] = turn
        try:
            self._place_waiting()
            return await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                turn.result().release()  # cancelled in the very moment it was placed
            else:
                self._ledger.line.leave(ticket)
                self._place_waiting()  # those it held replicas against
            raise
        finally:
            self._turns.pop(ticket.order, None)

    def better(self, slot: Slot) -> str | None:
        """A replica on which the request that holds this slot would do better, if it moved.

        None where nothing waits inside its replica: then it is being worked on.
        """
        now_s = self._clock()
        if not self._ledger.queues(slot.replica_id, now_s):
            return None
        return self._ledger.better(slot.tokens, slot.replica_id, now_s)

    def move(self, slot: Slot, replica_id: str) -> Slot:
        """The same request on another replica; `slot` is given back."""
        self._ledger.take(replica_id, slot.tokens, slot.work)
        slot.release()
        return Slot(
            replica_id=replica_id, tokens=slot.tokens, work=slot.work, release=self._give_back
        )

    def load(self) -> PoolLoad:
        """This gateway's traffic for the pool."""
        traffic = self._ledger.traffic(self._clock())
        return PoolLoad(pool=self._pool, **asdict(traffic))

    def in_flight(self) -> dict[str, tuple[int, float]]:
        """Requests and predicted tokens per replica."""
        return self._ledger.in_flight()

    def _place_waiting(self) -> None:
        for ticket, replica_id in self._ledger.place(self._clock()):
            self._hand_over(ticket, replica_id)
        if self._batch_due is None:
            self._look_again()

    def _look_again(self) -> None:
        """Set a timer for the batch that forms, if one does."""
        now_s = self._clock()
        due_s = self._ledger.due_s(now_s)
        if due_s < math.inf:
            loop = asyncio.get_running_loop()
            self._batch_due = loop.call_later(max(0.0, due_s - now_s), self._batch_is_due)

    def _batch_is_due(self) -> None:
        self._batch_due = None
        self._place_waiting()

    def _hand_over(self, ticket: Ticket, replica_id: str) -> None:
        ask = ticket.ask
        slot = Slot(
            replica_id=replica_id, tokens=ask.tokens, work=ask.work, release=self._give_back
        )
        turn = self._turns[ticket.order]
        if turn.done():
            slot.release()  # cancelled, and its own task has not yet run to take it out of the line
        else:
            turn.set_result(slot)

    def _give_back(self, slot: Slot) -> None:
        self._ledger.release(slot.replica_id, slot.tokens, slot.work)
        self._place_waiting()
