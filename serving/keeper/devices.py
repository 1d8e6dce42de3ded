"""How much GPU memory does each process hold, and which GPU is broken? NVML, where there is one.

Reads NVML through the module `pynvml` (nvidia-ml-py), which is handed in: None where it is not
installed. What NVML refuses is unknown and told as trouble, once per look; a GPU that it has lost,
that needs a reset, that counts a new uncorrectable error or reports a fatal XID is a fault of the
processes that hold it, or held it when NVML last could say.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving.keeper.xid import xid_fault


@dataclass(frozen=True, kw_only=True)
class DeviceAccount:
    """`held`: bytes of GPU memory by process id; NaN where NVML does not say. `faults`: by pid.

    `trouble`: what could not be looked at, or whose fault nobody holds; empty if nothing.
    """

    held: Mapping[int, float] = field(default_factory=dict)
    faults: Mapping[int, str] = field(default_factory=dict)
    trouble: str = ""


@dataclass
class _Gpu:
    """`holders`: processes that held it when NVML last said. `errors`: uncorrectable, so far."""

    name: str
    handle: Any
    uuid: str
    holders: frozenset[int] = frozenset()
    errors: int | None = None


def load_nvml() -> Any:
    """The module, None where it is not installed."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


class Devices:
    """The GPUs of this node."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._gpus: dict[int, _Gpu] = {}
        self._events: Any = None
        self._started = False

    def look(self) -> DeviceAccount:
        """What NVML says now; never raises for what it refuses. May block while a GPU is dying."""
        if self._nvml is None:
            return DeviceAccount()
        try:
            self._start()
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            if self._absent(error):
                return DeviceAccount()
            return DeviceAccount(trouble=f"NVML: {error}")
        look = _Look()
        for index in sorted({*range(count), *self._gpus}):
            try:
                self._look_at(self._gpu(index), look)
            except self._nvml.NVMLError as error:
                self._refused(index, error, look)
        for uuid, number in self._xids():
            fault = xid_fault(number)
            if fault:
                look.blame([g for g in self._gpus.values() if g.uuid == uuid], fault, uuid)
        return DeviceAccount(held=look.held, faults=look.faults, trouble="; ".join(look.trouble))

    def _start(self) -> None:
        if not self._started:
            self._nvml.nvmlInit()
            self._started = True
            with contextlib.suppress(self._nvml.NVMLError):
                self._events = self._nvml.nvmlEventSetCreate()

    def _absent(self, error: Exception) -> bool:
        """No driver, or no library of it: a machine without GPUs, and no trouble."""
        nvml = self._nvml
        none = {nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED}
        return getattr(error, "value", None) in none

    def _gpu(self, index: int) -> _Gpu:
        if index not in self._gpus:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            gpu = _Gpu(name=f"GPU {index}", handle=handle, uuid=self._uuid(handle))
            self._gpus[index] = gpu
            self._listen_to(gpu)
        return self._gpus[index]

    def _listen_to(self, gpu: _Gpu) -> None:
        nvml = self._nvml
        kinds = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
        if self._events is not None:
            with contextlib.suppress(nvml.NVMLError):  # not on every GPU: then there are no events
                nvml.nvmlDeviceRegisterEvents(gpu.handle, kinds, self._events)

    def _look_at(self, gpu: _Gpu, look: _Look) -> None:
        processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle)
        gpu.holders = frozenset(process.pid for process in processes)
        for process in processes:
            used = process.usedGpuMemory
            held = float("nan") if used is None else float(used)
            look.held[process.pid] = look.held.get(process.pid, 0.0) + held
        errors = self._uncorrected(gpu)
        if errors is not None and gpu.errors is not None and errors > gpu.errors:
            look.blame([gpu], f"{errors - gpu.errors} uncorrectable ECC error(s)", gpu.name)
        gpu.errors = errors if errors is not None else gpu.errors

    def _uncorrected(self, gpu: _Gpu) -> int | None:
        nvml = self._nvml
        try:
            return int(
                nvml.nvmlDeviceGetTotalEccErrors(
                    gpu.handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                )
            )
        except nvml.NVMLError as error:
            if getattr(error, "value", None) == nvml.NVML_ERROR_NOT_SUPPORTED:
                return None  # a GPU without ECC
            raise

    def _refused(self, index: int, error: Exception, look: _Look) -> None:
        nvml = self._nvml
        broken = {nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED}
        gpu = self._gpus.get(index)
        if gpu is not None and getattr(error, "value", None) in broken:
            look.blame([gpu], str(error), gpu.name)
        else:
            look.trouble.append(f"GPU {index}: {error}")

    def _xids(self) -> list[tuple[str, int]]:
        """(UUID, number) of each event since the last look."""
        found: list[tuple[str, int]] = []
        while self._events is not None:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:
                break  # none is left, or NVML has lost its GPUs: then the looks say so
            double = event.eventType == self._nvml.nvmlEventTypeDoubleBitEccError
            found.append((self._uuid(event.device), 48 if double else int(event.eventData)))
        return found

    def _uuid(self, handle: Any) -> str:
        try:
            uuid = self._nvml.nvmlDeviceGetUUID(handle)
        except self._nvml.NVMLError:
            return ""
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


@dataclass
class _Look:
    """What one look finds."""

    held: dict[int, float] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)

    def blame(self, gpus: list[_Gpu], fault: str, where: str) -> None:
        """Those that hold a GPU have its fault."""
        holders = {pid: gpu for gpu in gpus for pid in gpu.holders}
        for pid, gpu in holders.items():
            before = self.faults.get(pid)
            told = f"{gpu.name}: {fault}"
            self.faults[pid] = f"{before}; {told}" if before else told
        if not holders:
            self.trouble.append(f"{where}: {fault}, and no process holds it")
