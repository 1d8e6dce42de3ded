"""Which processes of this node belong to which replica, and how much memory do they take?

A process belongs to a replica if it is one of its Ray actors, descends from one, or carries its
mark (`serving.keeper.mark`). What was seen once is remembered by its id and the time it was
started: after its parent has died nothing else tells whose it was.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psutil

from serving.keeper.mark import replica_of

# By then a process runs what it was started for, and has the environment it will have.
_SETTLED_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Owned:
    """A process of a replica. `born_s`: when it was started; the same id later is another."""

    pid: int
    born_s: float
    replica_id: str


class ProcessTable:
    """The processes of one application's replicas on this node."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._owners: dict[tuple[int, float], str] = {}
        self._strangers: set[tuple[int, float]] = set()

    def look(self, roots: Mapping[str, Sequence[int]]) -> tuple[Owned, ...]:
        """All there are now, those of earlier looks included that still live."""
        born, children = _table()
        for replica_id, pids in roots.items():
            for pid in _descent([pid for pid in pids if pid in born], children):
                self._owners[pid, born[pid]] = replica_id
        living = set(born.items())
        self._owners = {key: owner for key, owner in self._owners.items() if key in living}
        self._strangers &= living
        for key in living - self._owners.keys() - self._strangers:
            owner = _marked(key[0], self._application)
            if owner is not None:
                self._owners[key] = owner
            elif time.time() - key[1] > _SETTLED_S:
                self._strangers.add(key)
        return tuple(
            Owned(pid=pid, born_s=born_s, replica_id=owner)
            for (pid, born_s), owner in sorted(self._owners.items())
        )


def memory(pid: int) -> float:
    """Bytes a process takes: its share of what it shares (PSS) and swap, else what is resident.

    0 for one that has ended.
    """
    try:
        process = psutil.Process(pid)
        try:
            full = process.memory_full_info()
            return float(full.pss + full.swap)
        except psutil.AccessDenied:
            return float(process.memory_info().rss)
    except psutil.Error:
        return 0.0


def named(pid: int) -> str:
    """What a process is called, empty for one that has ended."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).name()
    return ""


def signal_to(owned: Owned, number: int) -> bool:
    """Send a signal, if it is still the process that was seen, and this user's. Whether it was."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(owned.pid)
        same = process.create_time() == owned.born_s and process.uids().real == os.getuid()
        if same and owned.pid != os.getpid():
            process.send_signal(number)
            return True
    return False


def _table() -> tuple[dict[int, float], dict[int, list[int]]]:
    """This user's living processes: when each was started, and whom it started."""
    born: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    ours = os.getuid()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error), process.oneshot():
            if process.uids().real != ours or process.status() == psutil.STATUS_ZOMBIE:
                continue
            children.setdefault(process.ppid(), []).append(process.pid)
            born[process.pid] = process.create_time()
    return born, children


def _descent(pids: Iterable[int], children: Mapping[int, Sequence[int]]) -> list[int]:
    found, left = [], list(pids)
    while left:
        pid = left.pop()
        found.append(pid)
        left.extend(children.get(pid, ()))
    return found


def _marked(pid: int, application: str) -> str | None:
    try:
        return replica_of(psutil.Process(pid).environ(), application)
    except (psutil.Error, OSError):
        return None
