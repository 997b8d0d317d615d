"""Devices: finding them, moving bytes, building and launching, and what failures say."""

from __future__ import annotations

import errno
import gc
import linecache
import os
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import BUILT_TWICE, OPENCL, environment, open_mapping, open_opencl, open_pocl

from imgmlp.engine import AnyDevice, Device, NumpyDevice, list_devices, open_device
from imgmlp.engine.device import building, discover, driver
from imgmlp.engine.device import opencl as opencl_module
from imgmlp.engine.device.base import KernelHandle, Launch
from imgmlp.engine.device.discover import find
from imgmlp.engine.device.driver import NVIDIA
from imgmlp.engine.device.driver_errors import build_failure
from imgmlp.engine.device.pocl import SKIP_HEADER_OPTION, WHEEL_VERSION
from imgmlp.errors import DeviceError, ImgmlpWarning, OutOfMemoryError

DOUBLE = """__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void t_double(__global float *x, int n) { for (int i = 0; i < n; ++i) x[i] *= 2.f; }"""

# What a new process does with a kernel; prints one line.
RUN = f"""
import numpy as np
from imgmlp.engine import Tensor, open_device
device = open_device({OPENCL["device"]!r})
print(float((Tensor(np.arange(5.0), device) * 3).sum().item()))
"""


@pytest.fixture(scope="module")
def opencl() -> Device:
    return open_opencl()


@pytest.fixture(params=["one", "numpy"])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


@pytest.mark.parametrize("spec", ["numpy:procedure", "numpy:uops", "numpy:uops-group"])
def test_emulators_of_lowered_forms_are_opened_by_name_but_not_listed(spec: str) -> None:
    device = open_device(spec)
    assert device.info.spec == spec
    assert device.lanes == ("group" if "group" in spec else "one")
    assert spec not in [info.spec for info in list_devices()]


def test_numpy_is_always_listed_last() -> None:
    found = list_devices()
    assert found[-1].spec == found[-1].kind == "numpy"
    assert isinstance(open_device("numpy"), NumpyDevice)
    assert any(d.kind == "cpu" for d in found)


def test_auto_opens_an_opencl_device() -> None:
    assert isinstance(open_device("auto"), Device)


def test_simulator_is_opened_by_its_name_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be listed first, and it says that it is a GPU as well."""
    others = [pair for pair in find()[0] if pair[1].kind != "simulator"]
    handle, info = others[0]
    simulator = (handle, replace(info, spec="9:0", kind="simulator"))
    monkeypatch.setattr(discover, "find", lambda: ([simulator, *others], None))
    assert open_device("auto").info.kind != "simulator"
    assert open_device("cpu").info.kind == "cpu"
    assert open_device("simulator").info.spec == open_device("9:0").info.spec == "9:0"
    monkeypatch.setattr(discover, "find", lambda: ([simulator], None))
    for spec in ("cpu", "gpu"):
        with pytest.raises(DeviceError, match="only a simulator") as raised:
            open_device(spec)
        assert "pocl" in raised.value.hint
    with pytest.warns(ImgmlpWarning) as said:
        assert open_device("auto").info.kind == "numpy"
    first, second = (str(one.message) for one in said)
    assert "only a simulator" in first
    assert "NumPy computes" in second


def test_listed_spec_opens_its_device() -> None:
    for info in list_devices():
        assert open_device(info.spec).info == info


@pytest.mark.parametrize("spec", ["", "7:0", "0:99", "tpu", "0", "-1:0", "0:0:0"])
def test_error_of_an_unknown_spec_lists_devices(spec: str) -> None:
    with pytest.raises(DeviceError) as raised:
        open_device(spec)
    assert raised.value.exit_code == 6
    assert "0:0" in raised.value.hint
    assert "numpy" in raised.value.hint


def test_written_bytes_are_read_back(device: AnyDevice) -> None:
    allocation = device.alloc(40)
    device.write(allocation, np.arange(10, dtype=np.float32))
    found = np.empty(10, np.float32)
    pending = device.read_async(allocation, found)
    pending.wait()
    assert pending.done()
    assert found.tolist() == list(range(10))


def test_slices_share_memory_and_respect_alignment(device: AnyDevice) -> None:
    whole = device.alloc(4 * device.align)
    part = device.slice(whole, 2 * device.align, device.align)
    device.write(whole, np.zeros(4 * device.align, np.uint8))
    device.write(part, np.ones(device.align, np.uint8))
    found = np.empty(4 * device.align, np.uint8)
    device.read(whole, found)
    assert found.sum() == device.align
    assert found[2 * device.align] == 1
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
    found = np.empty(5, np.float32)
    opencl.read(allocation, found)
    assert found.tolist() == [8, 8, 8, 8, 1]
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
    assert len(made) == 2  # as both may be launched
    opencl.launch_all([first, second, first])
    opencl.finish()
    opencl.release(first)
    with pytest.raises(AssertionError, match="t_double is released twice"):
        opencl.release(first)
    opencl.launch_all([opencl.bind(kernel, [allocations[2], np.int32(3)], (1,), (1,)), second])
    assert len(made) == 2
    found = np.empty((3, 4), np.float32)
    for allocation, row in zip(allocations, found, strict=True):
        opencl.read(allocation, row)
    assert found.tolist() == [[4] * 4, [4] * 4, [2, 2, 2, 1]]


def test_linecache_of_kernel_sources_is_bounded(
    opencl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pyopencl has it, which takes the longer for each the more there were."""
    handle = opencl.build(DOUBLE, ["t_double"])["t_double"]
    arguments = opencl.alloc(32), np.int32(8)
    monkeypatch.setattr(building, "MAX_CACHED_SOURCES", len(linecache.cache) + 3)
    for _ in range(10):
        opencl.bind(handle, arguments, (1,), (1,))
        assert len(linecache.cache) <= building.MAX_CACHED_SOURCES


def test_build_error_shows_the_log_and_saves_the_source(opencl: Device) -> None:
    source = f"__kernel void t_broken(__global float *x) {{ x[0] = undeclared; }} {BUILT_TWICE}"
    with pytest.raises(DeviceError) as raised:
        opencl.build(source, ["t_broken"])
    assert "\n" not in str(raised.value)
    assert "undeclared" in raised.value.hint
    (saved,) = (w for w in raised.value.hint.split() if w.endswith(".cl"))
    assert Path(saved).read_text() == source
    os.unlink(saved)


# Of every function that kernels/declarations.cl declares, what it gives of numbers.
DECLARED = """
__kernel __attribute__((reqd_work_group_size(2, 1, 1)))
void t_declared(__global float *out, __global uint *count, __global half *halves) {
  __local uint shared[2];
  const int g = get_global_id(0), l = get_local_id(0);
  out += g * 40;
  *out++ = get_group_id(0) * 10 + get_num_groups(0);
  atomic_xchg(shared + l, 5u + g);
  barrier(CLK_LOCAL_MEM_FENCE);
  *out++ = shared[1 - l];
  barrier(CLK_LOCAL_MEM_FENCE);
  *out++ = atomic_inc(shared + l) + atomic_cmpxchg(shared + l, 6u, 9u);
  *out++ = atomic_inc((__local int *)shared + l) + atomic_xchg((__local int *)shared + l, -3);
  *out++ = atomic_cmpxchg((__local int *)shared + l, -3, 4);
  atomic_xchg((__local float *)shared + l, 3 + g);
  *out++ = atomic_xchg((__local float *)shared + l, 5);
  atomic_inc(count);
  *out++ = atomic_cmpxchg(count + 1 + g, 0u, 7u) + 1;
  __global int *own = (__global int *)count + 8 + g;
  *out++ = atomic_inc(own) + atomic_cmpxchg(own, 1, 7) + atomic_xchg(own, 3);
  *out++ = atomic_xchg((__global float *)own, 2) + atomic_xchg((__global float *)own, 0.5f);
  *out++ = min((char)-3, (char)2) + max((uchar)250, (uchar)3) + min((short)-300, (short)2);
  *out++ = min((ushort)65000, (ushort)3) + max(-70000, 2) + (max(4000000000u, 3u) > 3000000000u);
  *out++ = min((long)1 << 40, (long)1 << 41) / 1048576 + (max((ulong)1 << 63, (ulong)1) >> 60);
  *out++ = min(2.5f, 1.5f) + max(2.5f, 0.5f) + min(2.25, 1.0 / 3.0) + max(1.0, 1.0 / 7.0);
  *out++ = fmod(-7.5f, 2.f + g) + fmod(1.0 / 3.0, 0.25);
  *out++ = sin(1.f + g) + cos(2.f + g);
  *out++ = sin(1.0 / 3.0) + cos(1.0 / 7.0);
  vstore_half_rte(1.f / 3.f, g, halves);
  vstore_half_rte(2.0 / 3.0, 2 + g, halves);
  *out++ = vload_half(g, halves) + vload_half(2 + g, halves);
  *out++ = as_float(as_int(1.5f) + 1) + as_uint(2.f) + isfinite_or_not(INFINITY, NAN);
  const float8 eight = as_float8(as_uint8((float8)(g + 1)));
  const int16 sixteen = as_int16(as_float16((uint16)(3)));
  *out++ = eight.s7 + sixteen.sf + ((int2)(1, 2)).y + ((uint4)(9)).w;
}"""
FINITE = "static int isfinite_or_not(float x, float y) { return (x - x == 0) + 2 * (y == y); }"


def test_own_declarations_equal_those_of_the_drivers_header() -> None:
    device, found = open_pocl(), list[bytes]()
    for options in ((), ("-DHEADER",)):
        kernel = device.build(FINITE + DECLARED, ["t_declared"], options)["t_declared"]
        arrays = np.zeros(160, np.float32), np.zeros(12, np.uint32), np.zeros(8, np.float16)
        allocations = [device.alloc(array.nbytes) for array in arrays]
        for allocation, array in zip(allocations, arrays, strict=True):
            device.write(allocation, array)
        device.launch_all([device.bind(kernel, allocations, (4,), (2,))])
        for allocation, array in zip(allocations, arrays, strict=True):
            device.read(allocation, array)
        found.append(b"".join(array.tobytes() for array in arrays))
        assert np.all(arrays[0].reshape(4, 40)[:, :19] != 0)
        assert arrays[1].tolist() == [4, 7, 7, 7, 7, 0, 0, 0, *[0x3F000000] * 4]
    assert found[0] == found[1]


FAR = f"__kernel void t_far(__global float *x) {{ x[0] = clamp(x[0], 0.f, 1.f); }} {BUILT_TWICE}"


def test_generated_kernels_are_built_without_the_drivers_header() -> None:
    device = open_pocl()
    if device.info.driver != WHEEL_VERSION:
        pytest.skip("only of the wheel's PoCL it is known how")
    assert device._passes_over_header
    with pytest.raises(Exception, match="declaration of function '_cl_clamp'"):
        device._built(building._declarations() + FAR, [SKIP_HEADER_OPTION])


def test_undeclared_functions_are_found_in_the_drivers_header() -> None:
    device = open_pocl()
    kernel, allocation = device.build(FAR, ["t_far"])["t_far"], device.alloc(4)
    device.write(allocation, np.full(1, 3, np.float32))
    device.launch_all([device.bind(kernel, [allocation], (1,), (1,))])
    found = np.empty(1, np.float32)
    device.read(allocation, found)
    assert found == 1


def test_build_failure_on_a_full_disk_says_so(
    opencl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    error = build_failure("", "cannot write x.o\n", opencl.info)
    assert "No space left" in error.hint
    assert error.hint.endswith("cannot write x.o")


def test_out_of_memory_error_names_the_requested_bytes(opencl: Device) -> None:
    with pytest.raises(OutOfMemoryError) as raised:
        opencl.alloc(1 << 50)
    assert f"{1 << 50:,}" in str(raised.value)
    assert raised.value.exit_code == 7


def python(code: str, **changes: str | None) -> subprocess.CompletedProcess[str]:
    env = environment() | {k: v for k, v in changes.items() if v is not None}
    for name in (k for k, v in changes.items() if v is None):
        env.pop(name, None)
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"HOME": None, "XDG_CACHE_HOME": None},
        {"HOME": "/nonexistent", "XDG_CACHE_HOME": None},
        {"HOME": "/proc", "XDG_CACHE_HOME": "/proc"},
    ],
    ids=["no HOME", "HOME that is not there", "HOME that cannot be written"],
)
def test_kernels_run_without_a_writable_cache_folder(changes: dict[str, str | None]) -> None:
    done = python(RUN, POCL_CACHE_DIR=None, **changes)
    assert (done.stdout, done.stderr) == ("30.0\n", "")


def test_without_a_driver_auto_opens_numpy_and_cpu_is_refused() -> None:
    code = """
import warnings
from imgmlp.engine import list_devices, open_device
from imgmlp.errors import DeviceError
print([d.spec for d in list_devices()])
with warnings.catch_warnings(record=True) as said:
    print(open_device("auto").info.spec)
print("pocl" in str(said[0].message), "NumPy computes" in str(said[1].message), len(said))
try:
    open_device("cpu")
except DeviceError as error:
    print(error.exit_code, "pocl" in error.hint.lower(), "numpy" in error.hint)
"""
    done = python(code, OCL_ICD_VENDORS="/nonexistent")
    assert done.stdout == "['numpy']\nnumpy\nTrue True 2\n6 True True\n"
    assert done.stderr == ""


@pytest.mark.parametrize("left", ["None", "types.ModuleType('pyopencl')"], ids=["none", "a folder"])
def test_without_pyopencl_auto_opens_numpy(left: str) -> None:
    code = f"""
import sys, types
sys.modules["pyopencl"] = {left}
if sys.modules["pyopencl"]:
    sys.modules["pyopencl"].__file__ = None
from imgmlp.engine import Tensor, list_devices, open_device
print([d.spec for d in list_devices()], (Tensor([1.0], open_device("auto")) + 1).item())
"""
    done = python(code)
    assert done.stdout == "['numpy'] 2.0\n", done.stderr
    assert "pyopencl cannot be loaded" in done.stderr


@pytest.mark.parametrize("kind", ["OSError", "RuntimeError", "AttributeError", "ImportError"])
def test_with_broken_pyopencl_numpy_works_and_the_cause_is_shown(tmp_path: Path, kind: str) -> None:
    (tmp_path / "pyopencl.py").write_text(f"raise {kind}('libOpenCL.so:\\nof another machine')")
    code = """
from imgmlp.engine import Tensor, list_devices, open_device
print([d.spec for d in list_devices()], (Tensor([1.0], open_device("numpy")) + 1).item())
open_device("cpu")
"""
    done = python(code, PYTHONPATH=os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]]))
    assert done.stdout == "['numpy'] 2.0\n", done.stderr
    assert "pyopencl cannot be loaded (libOpenCL.so: of another machine)" in done.stderr


@pytest.mark.parametrize(
    ("processes", "rounds"), [(4, 1), pytest.param(16, 50, marks=pytest.mark.soak)]
)
def test_concurrent_processes_on_an_empty_cache_all_succeed(
    tmp_path: Path, processes: int, rounds: int
) -> None:
    for turn in range(rounds):
        cache = tmp_path / str(turn) / "pocl"
        cache.mkdir(parents=True)
        env = environment(XDG_CACHE_HOME=str(cache.parent), POCL_CACHE_DIR=str(cache))
        env |= {"PYTHONWARNINGS": "ignore:waiting for another process"}  # as on a busy machine
        command = [sys.executable, "-c", RUN]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started = [subprocess.Popen(command, env=env, **pipes) for _ in range(processes)]
        for process in started:
            out, err = process.communicate(timeout=300)
            assert (out, err) == (b"30.0\n", b"")
        assert any(cache.iterdir())


def test_compile_time_is_counted_for_the_first_build_only() -> None:
    device = open_opencl()
    before = device.compiling
    device.build(DOUBLE, ["t_double"])
    after = device.compiling
    assert after > before
    device.build(DOUBLE, ["t_double"])
    assert device.compiling == after


# --- memory that nobody uses any more ---


def test_devices_of_one_processor_share_a_context_but_no_queue() -> None:
    """But no queue, so that what fails in one is not lost to the other."""
    one, other = open_opencl(), open_opencl()
    assert one._context is other._context
    assert one._queue != other._queue
    one.lost = "trying"
    allocation, found = other.alloc(8), np.zeros(2, np.float32)
    other.write(allocation, np.ones(2, np.float32))
    other.read(allocation, found)
    assert found.tolist() == [1, 1]
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


def test_freed_buffers_are_reused_for_allocations_of_equal_size() -> None:
    device = open_opencl()
    device.spare.most = 8192
    kept = device.alloc(4096)
    first = kept.handle
    del kept
    assert device.usage.live_bytes == 0
    other, again = device.alloc(4097), device.alloc(4096)
    assert again.handle is first is not other.handle
    assert device.alloc(4096).handle is not first  # which is in use


def test_cached_buffers_stay_within_the_limit() -> None:
    device = open_opencl()
    device.info = replace(device.info, memory=2**24)  # of which all is asked for
    device.spare.most = 8192
    for nbytes in (4096, 16384, 4096, 8192):
        device.alloc(nbytes)
        assert sum(n * len(kept) for n, kept in device.spare._kept.items()) <= 8192
    assert list(device.spare._kept) == [8192]
    assert device.free_memory().total > 0
    assert not device.spare.clear()


def test_buffer_cache_limit_is_a_small_fraction_of_gpu_memory() -> None:
    small = replace(open_device("numpy").info, kind="gpu", memory=2**32)
    assert opencl_module.spare(small) == 2**26
    assert opencl_module.spare(replace(small, memory=2**40)) == 2**28
    assert opencl_module.spare(replace(small, kind="cpu")) == 0


@pytest.mark.parametrize(("error", "stays"), [(MemoryError, True), (ValueError, False)])
def test_program_whose_compiler_ran_out_of_memory_is_never_released(
    opencl: Device, monkeypatch: pytest.MonkeyPatch, error: type[Exception], stays: bool
) -> None:
    """PoCL keeps its lock then, for which whoever releases it would wait."""
    made = []

    class Program:
        def __init__(self, *_: object) -> None:
            made.append(weakref.ref(self))

        def build(self, **_: object) -> None:
            raise error("std::bad_alloc")

    monkeypatch.setattr(driver.cl, "Program", Program)
    with pytest.raises(error) as caught:
        opencl._built("", [])
    del caught
    gc.collect()
    assert (made[0]() is not None) is stays


def test_cached_buffers_are_freed_before_out_of_memory_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = open_opencl()
    device.spare.most = 8192
    device.alloc(4096)
    real, asked = driver.cl.Buffer, []

    def buffer(*arguments: object, size: int) -> object:
        asked.append(size)
        if device.spare._kept:
            raise driver.cl.MemoryError("clCreateBuffer failed: OUT_OF_RESOURCES")
        return real(*arguments, size=size)

    monkeypatch.setattr(driver.cl, "Buffer", buffer)
    assert device.alloc(2048).nbytes == 2048
    assert asked == [2048, 2048]


def test_side_queue_waits_for_earlier_launches_and_is_joined(
    opencl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, tuple[object, list[str] | None]] = {}

    def enqueue(queue: object, kernel: str, *sizes: object) -> str:
        told[kernel] = queue, sizes[3]  # type: ignore[assignment]
        return f"{kernel} done"

    monkeypatch.setattr(driver.cl, "enqueue_nd_range_kernel", enqueue)
    handle = KernelHandle("", None, None)
    names = [f"k{n}" for n in range(7)]
    launches = [Launch(handle, name, (1,), (1,), None, compiled=True) for name in names]
    opencl.launch_beside(launches, 2, 4, 6)
    assert [name for name in told if told[name][0] is not told["k0"][0]] == ["k2", "k3"]
    waits = {name: waits for name, (_, waits) in told.items() if waits is not None}
    assert waits == {"k2": ["k1 done"], "k6": ["k3 done"]}
