"""An NVML that is made up: the handful of functions that `serving.keeper.devices` calls."""

from __future__ import annotations

from dataclasses import dataclass, field


class NVMLError(Exception):
    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


@dataclass
class Process:
    pid: int
    usedGpuMemory: int | None  # noqa: N815  # NVML's name


@dataclass
class Event:
    device: int
    eventType: int  # noqa: N815
    eventData: int  # noqa: N815


@dataclass
class FakeNvml:
    """GPUs by index; a handle is the index. `broken`: what each call on a GPU raises."""

    processes: dict[int, list[Process]] = field(default_factory=dict)
    errors: dict[int, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    broken: dict[int, NVMLError] = field(default_factory=dict)
    no_init: NVMLError | None = None
    inits: int = 0

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_TIMEOUT = 10
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_RESET_REQUIRED = 16
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeDoubleBitEccError = 2  # noqa: N815
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def nvmlInit(self) -> None:
        if self.no_init:
            raise self.no_init
        self.inits += 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.processes)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self._check(index)
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        self._check(handle)
        return f"GPU-{handle}"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Process]:
        self._check(handle)
        return self.processes[handle]

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0)
        if handle not in self.errors:
            raise NVMLError(3, "Not Supported")
        return self.errors[handle]

    def nvmlEventSetCreate(self) -> list[int]:
        return []

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: list[int]) -> None:
        assert kinds == 8 | 2
        events.append(handle)

    def nvmlEventSetWait_v2(self, events: list[int], timeout_ms: int) -> Event:
        assert timeout_ms == 0
        if not self.events:
            raise NVMLError(10, "Timeout")
        return self.events.pop(0)

    def _check(self, index: int) -> None:
        if index in self.broken:
            raise self.broken[index]
