"""Building programs: errors, own declarations, helper processes, and kernels from parts."""

from __future__ import annotations

import errno
import gc
import linecache
import os
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import BUILT_TWICE, open_opencl, open_pocl

from imgmlp import child
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.engine import (
    Device,
    Tensor,
    compile,
    compiler,
    together,
)
from imgmlp.engine.device import building, driver
from imgmlp.engine.device.driver_errors import build_failure
from imgmlp.engine.device.pocl import SKIP_HEADER_OPTION, WHEEL_VERSION
from imgmlp.engine.runtime import executable, program
from imgmlp.errors import DeviceError


@pytest.fixture(scope="module")
def opencl() -> Device:
    return open_opencl()


DOUBLE = """__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void t_double(__global float *x, int n) { for (int i = 0; i < n; ++i) x[i] *= 2.f; }"""


def test_linecache_of_kernel_sources_is_bounded(
    opencl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyopencl would keep every source, and become slower with each."""
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


# Calls every function that kernels/declarations.cl declares, and stores the results.
DECLARED_FUNCTIONS = """
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


IS_FINITE = "static int isfinite_or_not(float x, float y) { return (x - x == 0) + 2 * (y == y); }"


def test_own_declarations_equal_those_of_the_drivers_header() -> None:
    device, results = open_pocl(), list[bytes]()
    for options in ((), ("-DHEADER",)):
        kernel = device.build(IS_FINITE + DECLARED_FUNCTIONS, ["t_declared"], options)["t_declared"]
        arrays = np.zeros(160, np.float32), np.zeros(12, np.uint32), np.zeros(8, np.float16)
        allocations = [device.alloc(array.nbytes) for array in arrays]
        for allocation, array in zip(allocations, arrays, strict=True):
            device.write(allocation, array)
        device.launch_all([device.bind(kernel, allocations, (4,), (2,))])
        for allocation, array in zip(allocations, arrays, strict=True):
            device.read(allocation, array)
        results.append(b"".join(array.tobytes() for array in arrays))
        assert np.all(arrays[0].reshape(4, 40)[:, :19] != 0)
        assert arrays[1].tolist() == [4, 7, 7, 7, 7, 0, 0, 0, *[0x3F000000] * 4]
    assert results[0] == results[1]


USES_CLAMP = (
    f"__kernel void t_far(__global float *x) {{ x[0] = clamp(x[0], 0.f, 1.f); }} {BUILT_TWICE}"
)


def test_generated_kernels_are_built_without_the_drivers_header() -> None:
    device = open_pocl()
    if device.info.driver != WHEEL_VERSION:
        pytest.skip("only of the wheel's PoCL it is known how")
    assert device._passes_over_header
    with pytest.raises(Exception, match="declaration of function '_cl_clamp'"):
        device._built(building._declarations() + USES_CLAMP, [SKIP_HEADER_OPTION])


def test_undeclared_functions_are_found_in_the_drivers_header() -> None:
    device = open_pocl()
    kernel, allocation = device.build(USES_CLAMP, ["t_far"])["t_far"], device.alloc(4)
    device.write(allocation, np.full(1, 3, np.float32))
    device.launch_all([device.bind(kernel, [allocation], (1,), (1,))])
    actual = np.empty(1, np.float32)
    device.read(allocation, actual)
    assert actual == 1


def test_build_failure_on_a_full_disk_says_so(
    opencl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    error = build_failure("", "cannot write x.o\n", opencl.info)
    assert "No space left" in error.hint
    assert error.hint.endswith("cannot write x.o")


def test_compile_time_is_counted_for_the_first_build_only() -> None:
    device = open_opencl()
    before = device.compiling
    device.build(DOUBLE, ["t_double"])
    after = device.compiling
    assert after > before
    device.build(DOUBLE, ["t_double"])
    assert device.compiling == after


@pytest.mark.parametrize(("error", "stays"), [(MemoryError, True), (ValueError, False)])
def test_program_whose_compiler_ran_out_of_memory_is_never_released(
    opencl: Device, monkeypatch: pytest.MonkeyPatch, error: type[Exception], stays: bool
) -> None:
    """PoCL keeps its lock then, so that releasing the program would wait forever."""
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


pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


SOURCE = "__kernel void t_part(__global float *x) { x[get_global_id(0)] += 1; }"


@pytest.fixture
def builders(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The Builders that a device starts, replaced by recorders without processes."""
    recorders = list[Any]()

    class RecordingBuilders:
        def __init__(self, spec: str, count: int) -> None:
            self.spec, self.count, self.parts = spec, count, list[str]()
            self.offered = list[str]()
            self.working, self.is_useless, self.expected = True, False, 0
            recorders.append(self)

        def expect(self) -> None:
            self.expected += 1

        def offer(self, parts: list[str]) -> None:
            self.offered += parts

        def build(self, parts: list[str], own: Callable[[str], object]) -> float:
            self.parts += parts
            for part in reversed(parts):
                own(part)
            return 3.0

        def close(self) -> None:
            self.working = False

    monkeypatch.setattr(building, "Builders", RecordingBuilders)
    monkeypatch.setattr(building, "available_cores", lambda: 9)
    monkeypatch.setenv(child.COMPILERS_VARIABLE, "5")
    return recorders


def report_as_nvidia(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "info", replace(device.info, platform=driver.NVIDIA))


def test_helpers_are_started_for_drivers_that_compile_at_build(
    pocl: Device, builders: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pocl.expect_programs()
    assert builders == []
    report_as_nvidia(pocl, monkeypatch)
    pocl.expect_programs()
    pocl.expect_programs()
    assert [(one.spec, one.count, one.expected) for one in builders] == [(pocl.info.spec, 5, 1)]
    builders[0].working = False
    pocl.expect_programs()
    assert len(builders) == 2
    builders[1].working, builders[1].is_useless = False, True
    pocl.expect_programs()
    assert len(builders) == 2


def test_helpers_are_closed_when_memory_is_short(
    pocl: Device, builders: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    report_as_nvidia(pocl, monkeypatch)
    pocl.expect_programs()
    make = driver.cl.Buffer

    def short(*arguments: Any, **sizes: Any) -> Any:
        if builders[0].working:
            raise driver.cl.MemoryError("none is left")
        return make(*arguments, **sizes)

    monkeypatch.setattr(driver.cl, "Buffer", short)
    assert pocl.alloc(1000).nbytes == 1000
    pocl.expect_programs()
    pocl.free_memory()
    assert [one.working for one in builders] == [False, False]


@pytest.mark.parametrize(("memory", "count"), [(1 << 31, 3), (10 << 30, 5), (1 << 37, 7)])
def test_number_of_helpers_is_limited_by_cores_and_memory(
    memory: int,
    count: int,
    pocl: Device,
    builders: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report_as_nvidia(pocl, monkeypatch)
    monkeypatch.setattr(pocl, "info", replace(pocl.info, memory=memory))
    monkeypatch.delenv(child.COMPILERS_VARIABLE)
    pocl.expect_programs()
    assert [one.count for one in builders] == [count]


def test_built_parts_are_not_offered_again(
    pocl: Device, builders: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    report_as_nvidia(pocl, monkeypatch)
    one, other = (SOURCE.replace("t_part", f"t_part{time.time_ns()}") for _ in range(2))
    pocl.build(one, ())
    pocl.begin_parts([one, other])  # no helpers yet
    pocl.expect_programs()
    pocl.begin_parts([one, other])
    assert builders[0].offered == [other]


def test_no_helpers_are_started_if_disabled(
    pocl: Device, builders: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    report_as_nvidia(pocl, monkeypatch)
    monkeypatch.setenv(child.COMPILERS_VARIABLE, "0")
    pocl.expect_programs()
    assert builders == []


def test_helpers_end_with_the_device(builders: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_pocl()
    report_as_nvidia(device, monkeypatch)
    device.expect_programs()
    monkeypatch.undo()
    del device
    assert not builders[0].working


KERNEL_TEMPLATE = "__kernel void {}(__global float *x) {{ x[0] = {}; }}"


@pytest.mark.parametrize("has_helpers", [False, True])
def test_each_kernel_comes_from_the_part_that_defines_it(
    has_helpers: bool, pocl: Device, builders: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    number = time.time_ns() % 10**6
    parts = {
        KERNEL_TEMPLATE.format(name, n + number): [name]
        for n, name in enumerate(["t_a", "t_b", "t_c"])
    }
    if has_helpers:
        report_as_nvidia(pocl, monkeypatch)
        pocl.expect_programs()
    before = pocl.compiling
    handles = pocl.build_parts(parts)
    assert [part for one in builders for part in one.parts] == list(parts) * has_helpers
    assert (pocl.compiling - before >= 3.0) is has_helpers
    memory, actual = pocl.alloc(4), np.empty(1, np.float32)
    for n, name in enumerate(["t_a", "t_b", "t_c"]):
        pocl.launch_all([pocl.bind(handles[name], [memory], (1,), (1,))])
        pocl.read(memory, actual)
        assert actual[0] == n + number
    pocl.build_parts(parts)
    assert sum(len(one.parts) for one in builders) == 3 * has_helpers


@pytest.mark.parametrize(("count", "kept", "begun"), [(3, -1.0, 1), (3, 1000.0, 0), (2, -1.0, 0)])
def test_helpers_are_started_if_the_first_part_was_slow_to_build(
    count: int, kept: float, begun: int,
    pocl: Device, builders: list[Any], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    report_as_nvidia(pocl, monkeypatch)
    monkeypatch.setattr(building, "MIN_BUILD_SECONDS", kept)
    number = time.time_ns() % 10**6
    parts = {KERNEL_TEMPLATE.format(f"t_{n}", n + number): [f"t_{n}"] for n in range(count)}
    assert set(pocl.build_parts(parts)) == {f"t_{n}" for n in range(count)}
    assert [one.parts for one in builders] == [list(parts)[1:]] * begun


def test_program_built_in_parts_gives_the_same_results(
    pocl: Device, builders: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Helpers are started for a new and large graph before it is lowered.

    Kernels of the program beside it are not built again.
    """
    monkeypatch.setattr(executable, "MIN_PART_LENGTH", 1)
    monkeypatch.setattr(Device, "builds_in_parts", True)
    order, lower, expect = list[str](), compiler.lower, Device.expect_programs
    monkeypatch.setattr(compiler, "lower", lambda *of: (order.append("lowered"), lower(*of))[1])
    monkeypatch.setattr(
        Device, "expect_programs", lambda own: (order.append("expected"), expect(own))[1]
    )
    number = time.time_ns() % 10**6  # unique, so that no cache has it

    def step() -> dict[str, Tensor]:
        x = Tensor(np.arange(64, dtype=np.float32), pocl, name="x")
        y = (x * number).contiguous()
        return {"sum": (y + 1).sum(), "largest": (y - number).max()}

    def both() -> dict[str, Tensor]:
        outputs = step()
        return outputs | {"less": (outputs["sum"] - 3).contiguous()}

    monkeypatch.setattr(program, "MANY_NODES", 10**6)
    small = compile(step, pocl)
    assert order == ["lowered"]
    number += 1
    monkeypatch.setattr(program, "MANY_NODES", 3)
    large = compile(step, pocl)
    assert order == ["lowered", "expected", "lowered"]
    (one,) = builders
    functions = {call.function for call in large.executable.calls}
    assert len(one.parts) == len(functions) > 1
    for each, factor in ((small, number - 1), (large, number)):
        each.run()
        assert each.read("sum") == pytest.approx(2016 * factor + 64)
        assert each.read("largest") == pytest.approx(62 * factor)
    other = compile(both, pocl, beside=large)
    other.run()
    assert other.read("less") == pytest.approx(2016 * number + 61)
    new = {call.function for call in other.executable.calls}
    assert len(one.parts) - len(functions) < len(new)


def test_programs_compiled_together_are_all_lowered_before_any_is_built(
    pocl: Device, builders: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second program contains the kernels of the first."""
    monkeypatch.setattr(Device, "builds_in_parts", True)
    monkeypatch.setattr(program, "MANY_NODES", 0)
    order, lower = list[str](), compiler.lower
    monkeypatch.setattr(compiler, "lower", lambda *of: (order.append("lowered"), lower(*of))[1])
    build_parts = Device.build_parts

    def built(device: Device, parts: dict[str, list[str]]) -> Any:
        order.append("built")
        return build_parts(device, parts)

    monkeypatch.setattr(Device, "build_parts", built)
    x = Tensor(np.arange(64, dtype=np.float32), pocl)
    number = time.time_ns() % 10**6  # unique, so that no cache has it

    def step(more: int) -> dict[str, Tensor]:
        y = (x * number).contiguous()
        return {"sum": (y + more).sum(), "largest": y.max()}

    with together():
        first = compile(lambda: step(1), pocl)
        second = compile(lambda: step(2), pocl, beside=first)
        assert order == ["lowered", "lowered"]
        assert not builders[0].parts
        offered = list(builders[0].offered)
    assert order == ["lowered", "lowered", "built", "built"]
    assert builders[0].parts == offered
    assert len(set(offered)) == len(offered) == 2
    assert first.sequence[0].handle is second.sequence[0].handle
    for more, each in ((1, first), (2, second)):
        each.run()
        assert each.read("sum") == pytest.approx(2016 * number + 64 * more)
    third = compile(lambda: step(3), pocl)
    third.run()
    assert third.read("largest") == pytest.approx(63 * number)


def test_judging_program_is_compiled_with_the_latent_step(
    pocl: Device, builders: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "MANY_NODES", 10**6)
    pixels = np.zeros((2, 3, 3), np.uint8)
    assert "_judging" not in vars(LatentStep(pixels, 0, pocl, Architecture(4, 2)))
    monkeypatch.setattr(Device, "builds_in_parts", True)
    step = LatentStep(pixels, 0, pocl, Architecture(4, 2))
    assert "_judging" in vars(step)
    error, bits = step.judge(step.flat.numpy())
    assert error > 0
    assert bits > 0
