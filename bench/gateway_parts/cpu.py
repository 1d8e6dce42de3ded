"""Who has used the cores? What is measured, and who else was busy on this machine meanwhile.

Rates of a run during which others worked are lower than they would be; the table says so.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, kw_only=True)
class Used:
    """CPU seconds: of all processes started here but those excepted, of this one, of others."""

    started_s: float
    own_s: float
    elsewhere_s: float
    seconds: float

    @property
    def elsewhere_cores(self) -> float:
        """Cores that others kept busy."""
        return max(0.0, self.elsewhere_s) / self.seconds


class Meter:
    """Counts from when it is made. `excepted`: process ids that count with this process."""

    def __init__(self, *, excepted: frozenset[int] = frozenset()) -> None:
        self._excepted = excepted
        self._begun_s = time.monotonic()
        self._machine_s = _machine_s()
        self._processes = self._family_s()

    def used(self) -> Used:
        """Since then."""
        now = self._family_s()
        spent = {pid: cpu_s - self._processes.get(pid, 0.0) for pid, cpu_s in now.items()}
        own_s = sum(spent.pop(pid, 0.0) for pid in {*self._excepted, os.getpid()})
        started_s = sum(spent.values())
        return Used(
            started_s=started_s,
            own_s=own_s,
            elsewhere_s=_machine_s() - self._machine_s - own_s - started_s,
            seconds=time.monotonic() - self._begun_s,
        )

    def _family_s(self) -> dict[int, float]:
        own = psutil.Process()
        spent = {}
        for process in [own, *own.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                spent[process.pid] = times.user + times.system
        return spent


def _machine_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))
