"""OpenCL devices: moving bytes, launching kernels, contexts and queues."""

from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np
import pytest
from conftest import open_mapping, open_opencl, open_pocl

from imgmlp.engine import AnyDevice, Device
from imgmlp.engine.device import driver
from imgmlp.engine.device.base import KernelHandle, Launch
from imgmlp.engine.device.driver import NVIDIA
from imgmlp.errors import DeviceError, OutOfMemoryError

DOUBLE = """__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void t_double(__global float *x, int n) { for (int i = 0; i < n; ++i) x[i] *= 2.f; }"""


@pytest.fixture(scope="module")
def opencl() -> Device:
    return open_opencl()


@pytest.fixture(params=["one", "numpy"])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


def test_written_bytes_are_read_back(device: AnyDevice) -> None:
    allocation = device.alloc(40)
    device.write(allocation, np.arange(10, dtype=np.float32))
    actual = np.empty(10, np.float32)
    pending = device.read_async(allocation, actual)
    pending.wait()
    assert pending.done()
    assert actual.tolist() == list(range(10))


def test_slices_share_memory_and_respect_alignment(device: AnyDevice) -> None:
    whole = device.alloc(4 * device.align)
    part = device.slice(whole, 2 * device.align, device.align)
    device.write(whole, np.zeros(4 * device.align, np.uint8))
    device.write(part, np.ones(device.align, np.uint8))
    actual = np.empty(4 * device.align, np.uint8)
    device.read(whole, actual)
    assert actual.sum() == device.align
    assert actual[2 * device.align] == 1
    with pytest.raises(ValueError, match="multiple of"):
        device.slice(whole, 1, 4)


def test_nvidia_driver_gets_no_sliced_allocations() -> None:
    pocl = open_pocl()
    assert pocl.can_slice
    assert not Device(pocl._handle, replace(pocl.info, platform=NVIDIA)).can_slice


def test_bound_launch_can_be_repeated_with_its_arguments(opencl: Device) -> None:
    allocation = opencl.alloc(20)
    opencl.write(allocation, np.ones(5, np.float32))
    kernel = opencl.build(DOUBLE, ["t_double"])["t_double"]
    launch = opencl.bind(kernel, [allocation, np.int32(4)], (1,), (1,))
    opencl.launch_all([launch] * 3)
    actual = np.empty(5, np.float32)
    opencl.read(allocation, actual)
    assert actual.tolist() == [8, 8, 8, 8, 1]
    assert all(t > 0 for t in opencl.time_launches([launch, launch]))  # microseconds


def test_released_kernel_objects_are_reused_for_later_launches(
    opencl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, own = list[str](), opencl._kernel
    monkeypatch.setattr(opencl, "_kernel", lambda *which: (made.append(which[1]), own(*which))[1])
    kernel = opencl.build(DOUBLE, ["t_double"])["t_double"]
    allocations = [opencl.alloc(16) for _ in range(3)]
    for allocation in allocations:
        opencl.write(allocation, np.ones(4, np.float32))
    first, second = (opencl.bind(kernel, [a, np.int32(4)], (1,), (1,)) for a in allocations[:2])
    assert len(made) == 2  # both may be launched at the same time
    opencl.launch_all([first, second, first])
    opencl.finish()
    opencl.release(first)
    with pytest.raises(AssertionError, match="t_double is released twice"):
        opencl.release(first)
    opencl.launch_all([opencl.bind(kernel, [allocations[2], np.int32(3)], (1,), (1,)), second])
    assert len(made) == 2
    actual = np.empty((3, 4), np.float32)
    for allocation, row in zip(allocations, actual, strict=True):
        opencl.read(allocation, row)
    assert actual.tolist() == [[4] * 4, [4] * 4, [2, 2, 2, 1]]


def test_out_of_memory_error_names_the_requested_bytes(opencl: Device) -> None:
    with pytest.raises(OutOfMemoryError) as raised:
        opencl.alloc(1 << 50)
    assert f"{1 << 50:,}" in str(raised.value)
    assert raised.value.exit_code == 7


# --- contexts and queues ---


def test_devices_of_one_processor_share_a_context_but_no_queue() -> None:
    """A failure in one device's queue does not affect the other device."""
    one, other = open_opencl(), open_opencl()
    assert one._context is other._context
    assert one._queue != other._queue
    one.lost = "trying"
    allocation, actual = other.alloc(8), np.zeros(2, np.float32)
    other.write(allocation, np.ones(2, np.float32))
    other.read(allocation, actual)
    assert actual.tolist() == [1, 1]
    with pytest.raises(DeviceError, match="trying"):
        one.finish()


def test_context_of_a_failed_queue_is_not_reused() -> None:
    one = open_opencl()
    one._failed("trying", RuntimeError("lost"))
    assert open_opencl()._context is not one._context


@pytest.mark.parametrize("stays", [False, True])
def test_context_is_released_with_its_last_device_except_on_pocl(
    stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_opencl()
    monkeypatch.setattr(driver, "PLATFORM", device.info.platform if stays else "another")
    monkeypatch.setattr(driver, "_contexts", weakref.WeakValueDictionary())
    monkeypatch.setattr(driver, "_permanent_contexts", [])
    shared = weakref.ref(driver.shared_context(device._handle, device.info))
    assert (shared() is not None) is stays


def test_side_queue_waits_for_earlier_launches_and_is_joined(
    opencl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueued: dict[str, tuple[object, list[str] | None]] = {}

    def enqueue(queue: object, kernel: str, *sizes: object) -> str:
        enqueued[kernel] = queue, sizes[3]  # type: ignore[assignment]
        return f"{kernel} done"

    monkeypatch.setattr(driver.cl, "enqueue_nd_range_kernel", enqueue)
    handle = KernelHandle("", None, None)
    names = [f"k{n}" for n in range(7)]
    launches = [Launch(handle, name, (1,), (1,), None, compiled=True) for name in names]
    opencl.launch_beside(launches, 2, 4, 6)
    assert [name for name in enqueued if enqueued[name][0] is not enqueued["k0"][0]] == ["k2", "k3"]
    waits = {name: waits for name, (_, waits) in enqueued.items() if waits is not None}
    assert waits == {"k2": ["k1 done"], "k6": ["k3 done"]}
