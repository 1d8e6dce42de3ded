import math

import pytest

from serving.keeper.devices import DeviceAccount, Devices, load_nvml
from serving.keeper.xid import xid_fault
from tests.serving.fake_nvml import Event, FakeNvml, NVMLError, Process

GIB = 2**30
XID = FakeNvml.nvmlEventTypeXidCriticalError


def two_gpus(**more):
    held = {0: [Process(10, 3 * GIB), Process(11, GIB)], 1: [Process(11, 2 * GIB)]}
    return FakeNvml(processes=held, **more)


def test_memory_is_summed_by_process():
    account = Devices(two_gpus()).look()
    assert account == DeviceAccount(held={10: 3.0 * GIB, 11: 3.0 * GIB})


def test_memory_that_nvml_does_not_tell_is_unknown():
    account = Devices(FakeNvml(processes={0: [Process(10, None)]})).look()
    assert math.isnan(account.held[10])


@pytest.mark.parametrize("code", [9, 12])
def test_a_machine_without_gpus_is_no_trouble(code):
    nvml = FakeNvml(no_init=NVMLError(code, "Driver Not Loaded"))
    assert Devices(nvml).look() == DeviceAccount()
    assert Devices(None).look() == DeviceAccount()


def test_nvml_that_does_not_start_is_told_and_tried_again():
    nvml = two_gpus(no_init=NVMLError(999, "Unknown Error"))
    devices = Devices(nvml)
    assert devices.look().trouble == "NVML: Unknown Error"
    nvml.no_init = None
    assert devices.look().held
    assert devices.look().held
    assert nvml.inits == 1


@pytest.mark.parametrize("code", [15, 16])
def test_a_lost_gpu_is_the_fault_of_those_who_held_it(code):
    nvml = two_gpus()
    devices = Devices(nvml)
    devices.look()
    nvml.broken[1] = NVMLError(code, "GPU is lost")
    account = devices.look()
    assert account.faults == {11: "GPU 1: GPU is lost"}
    assert account.held == {10: 3.0 * GIB, 11: float(GIB)}
    assert not account.trouble


def test_what_nvml_refuses_for_another_reason_is_unknown_and_no_fault():
    nvml = two_gpus()
    nvml.broken[0] = NVMLError(4, "Insufficient Permissions")
    account = Devices(nvml).look()
    assert account.faults == {}
    assert account.held == {11: 2.0 * GIB}
    assert account.trouble == "GPU 0: Insufficient Permissions"


def test_a_fatal_xid_is_the_fault_of_its_gpus_holders():
    nvml = two_gpus()
    devices = Devices(nvml)
    devices.look()
    nvml.events = [Event(0, XID, 79), Event(1, XID, 31)]
    account = devices.look()
    assert account.faults == dict.fromkeys((10, 11), "GPU 0: XID 79 (GPU has fallen off the bus)")
    assert devices.look().faults == {}, "an event is told once"


def test_xids_of_applications_are_no_fault_of_the_gpu():
    assert [xid_fault(number) for number in (13, 31, 43, 45, 63)] == [""] * 5
    assert xid_fault(48) == "XID 48 (double bit ECC error)"
    assert xid_fault(200) == "XID 200"


def test_new_uncorrectable_errors_are_a_fault_and_old_ones_are_not():
    nvml = two_gpus(errors={0: 7, 1: 0})
    devices = Devices(nvml)
    assert devices.look().faults == {}
    nvml.errors[0] = 9
    assert devices.look().faults[10] == "GPU 0: 2 uncorrectable ECC error(s)"
    assert devices.look().faults == {}


def test_a_fault_that_nobody_holds_is_trouble():
    nvml = FakeNvml(processes={0: []})
    devices = Devices(nvml)
    devices.look()
    nvml.events = [Event(0, XID, 79)]
    assert "no process holds it" in devices.look().trouble


@pytest.mark.gpu
def test_the_nvml_of_this_machine_is_read():
    import torch

    held = torch.zeros(2**28, dtype=torch.uint8, device="cuda")
    account = Devices(load_nvml()).look()
    assert account.trouble == ""
    assert account.faults == {}
    assert sum(account.held.values()) >= held.numel()
