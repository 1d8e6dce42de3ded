"""One per node: what do the replicas here use, which of their devices is broken, what is left?

A Ray actor that only answers: the controller asks it every few seconds (`keepers.Keepers`), with
the roll of the replicas there are. It runs as its node's user, touches no process that is not
marked as ours or descends from ours, and ends with the instance.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import time
from collections.abc import Mapping
from typing import Any

from serving.keeper.account import NodeAccount, ReplicaUse, Roll, Swept
from serving.keeper.devices import DeviceAccount, Devices, load_nvml
from serving.keeper.orphans import PATIENCE_S, Orphan, step_orphans
from serving.keeper.processes import Owned, ProcessTable, memory, named, signal_to

# A dying GPU can block NVML; memory of processes is told all the same.
DEVICES_PATIENCE_S = 5.0

logger = logging.getLogger("shardwise.keeper")


class NodeKeeper:
    """Ray actor class. `nvml`: the module, where it is not the installed one."""

    def __init__(self, application: str, *, orphan_grace_s: float, nvml: Any = None) -> None:
        self._table = ProcessTable(application)
        self._devices = Devices(nvml or load_nvml())
        self._grace_s = orphan_grace_s
        self._orphans: Mapping[Owned, Orphan] = {}
        self._faults: dict[str, str] = {}
        self._looking: asyncio.Task[DeviceAccount] | None = None

    async def look(self, roll: Roll) -> NodeAccount:
        """What is here now; ends what the roll has been missing for long enough."""
        processes = await asyncio.to_thread(self._table.look, roll.roots)
        bytes_of = await asyncio.to_thread(lambda: {p: memory(p.pid) for p in processes})
        devices = await self._look_at_devices()
        for owned in processes:
            fault = devices.faults.get(owned.pid)
            if fault and owned.replica_id not in self._faults:
                self._faults[owned.replica_id] = fault
                logger.warning("replica %s: %s", owned.replica_id, fault)
        owners = {owned.replica_id for owned in processes}
        self._faults = {name: fault for name, fault in self._faults.items() if name in owners}
        return NodeAccount(
            replicas={
                owner: ReplicaUse(
                    host_bytes=sum(bytes_of[p] for p in processes if p.replica_id == owner),
                    device_bytes=_held(processes, devices, owner),
                    device_fault=self._faults.get(owner, ""),
                )
                for owner in owners
            },
            swept=self._sweep(processes, bytes_of, devices, roll.living),
            trouble=devices.trouble,
        )

    async def end(self) -> int:
        """End every process of every replica here. Returns how many there were."""
        processes = await asyncio.to_thread(self._table.look, {})
        asked = [p for p in processes if signal_to(p, signal.SIGTERM)]
        until_s = time.monotonic() + PATIENCE_S
        while asked and time.monotonic() < until_s:
            await asyncio.sleep(0.1)
            asked = [p for p in self._table.look({}) if p in asked]
        for owned in asked:
            signal_to(owned, signal.SIGKILL)
        return len(processes)

    async def _look_at_devices(self) -> DeviceAccount:
        if self._looking is None:
            self._looking = asyncio.create_task(asyncio.to_thread(self._devices.look))
        done, _ = await asyncio.wait({self._looking}, timeout=DEVICES_PATIENCE_S)
        if not done:
            return DeviceAccount(trouble=f"NVML has not answered for {DEVICES_PATIENCE_S:g} s")
        account, self._looking = self._looking.result(), None
        return account

    def _sweep(
        self,
        processes: tuple[Owned, ...],
        bytes_of: Mapping[Owned, float],
        devices: DeviceAccount,
        living: frozenset[str] | None,
    ) -> tuple[Swept, ...]:
        step = step_orphans(
            self._orphans, processes, living, now_s=time.monotonic(), grace_s=self._grace_s
        )
        self._orphans = step.known
        swept: list[Swept] = []
        for owned in step.ask:
            found = Swept(
                pid=owned.pid,
                name=named(owned.pid),
                replica_id=owned.replica_id,
                host_bytes=bytes_of[owned],
                device_bytes=devices.held.get(owned.pid, math.nan),
                age_s=time.time() - owned.born_s,
            )
            if signal_to(owned, signal.SIGTERM):
                swept.append(found)
                logger.warning("what is left of a replica is ended: %s", found)
        for owned in step.end:
            signal_to(owned, signal.SIGKILL)
        return tuple(swept)


def _held(processes: tuple[Owned, ...], devices: DeviceAccount, owner: str) -> float:
    """GPU memory of a replica; unknown where none of its processes is known to NVML.

    In a container NVML may tell process ids of the host: then nothing is known, not zero.
    """
    held = [
        devices.held[owned.pid]
        for owned in processes
        if owned.replica_id == owner and owned.pid in devices.held
    ]
    return sum(held) if held else math.nan
