"""RawKernel: arguments of hand-written kernels, what they write, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import open_opencl

from imgmlp.engine import Device, RawKernel, Tensor, compare, compile, open_device
from imgmlp.engine.device import driver_errors
from imgmlp.engine.ir.usage_errors import OutOfBoundsError
from imgmlp.errors import DeviceError

SCALE = """
__kernel void t_scale(__global float *out, __global const float *a, float factor, uint size) {
  const uint i = get_global_id(0) * WIDTH + get_global_id(1);
  if (i < size) out[i] = a[i] * factor;
}"""


@pytest.fixture(scope="module")
def scale() -> RawKernel:
    return RawKernel(open_opencl(), SCALE, "t_scale", WIDTH=4)


@pytest.fixture
def a() -> np.ndarray:
    return np.arange(10, dtype=np.float32)


def test_raw_kernel_writes_arrays_back_for_the_grid_of_the_call(
    scale: RawKernel, a: np.ndarray
) -> None:
    out = np.full(12, -1, np.float32)
    scale((4, 4), (2, 2), out, a, 3, a.size)
    assert out.tolist() == [*(a * 3).tolist(), -1, -1]
    scale((1, 4), (1, 4), out, a, 0.5, a.size)
    assert out.tolist() == [0, 0.5, 1, 1.5, *(a[4:] * 3).tolist(), -1, -1]


def test_later_calls_reuse_the_kernel_object_of_the_first(
    scale: RawKernel, a: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale.device, "_kernel", lambda *_: pytest.fail("another one was made"))
    out = np.zeros(10, np.float32)
    for factor in (2.0, 3.0):
        scale.time((3, 4), (3, 4), out, a, factor, 10, runs=2)
        scale((3, 4), (3, 4), out, a, factor, 10)
        assert out.tolist() == (a * factor).tolist()


def test_strided_arrays_are_passed_and_written_back(scale: RawKernel, a: np.ndarray) -> None:
    out = np.zeros((10, 2), np.float32)
    scale((3, 4), (1, 4), out[:, 1], a[::-1], 1, a.size)
    assert out.tolist() == [[0, 9 - i] for i in range(10)]


def test_indices_written_by_a_raw_kernel_are_bounds_checked() -> None:
    device = open_opencl()
    source = "__kernel void t_put(__global int *o, int v) { o[get_global_id(0)] = v; }"
    put, index = RawKernel(device, source, "t_put"), Tensor([0, 1], device)
    taken = Tensor(np.arange(5.0), device)[index]
    assert taken.numpy().tolist() == [0, 1]
    put(2, 1, index, 4)
    assert taken.numpy().tolist() == [4, 4]
    for launch in (put, put.time):
        launch(2, 1, index.write(np.int32([0, 1])), 100_000_000)
        with pytest.raises(OutOfBoundsError, match="a computed index is 100000000"):
            taken.numpy()


def test_raw_kernel_takes_tensors_without_copying_to_the_host(
    scale: RawKernel, a: np.ndarray
) -> None:
    device = scale.device
    out, x = Tensor.empty(10, device=device), Tensor(a, device) + 1
    scale((3, 4), (3, 4), out, x, 2.0, 10)
    assert out.numpy().tolist() == (a * 2 + 2).tolist()
    assert not x.realized
    assert (out + x).numpy().tolist() == (a * 3 + 3).tolist()


def test_output_that_is_no_realized_tensor_is_refused(scale: RawKernel, a: np.ndarray) -> None:
    out = Tensor.empty(10, device=scale.device)
    for lost in (out + 0, out.reshape(2, 5), Tensor.zeros(10)):
        with pytest.raises(ValueError, match=r"float\* out: only a realized Tensor can be written"):
            scale((3, 4), (3, 4), lost, a, 2.0, 10)


def test_array_passed_twice_is_one_device_buffer(scale: RawKernel, a: np.ndarray) -> None:
    """A const argument is never copied back: old values would overwrite the result."""
    for view in (a, a[:], a.reshape(2, 5)):
        expected = (view * 3).tolist()
        scale((3, 4), (3, 4), view, view[...], 3.0, 10)
        assert view.tolist() == expected
    a.flags.writeable = False
    before, out = a.tolist(), a.copy()
    scale((3, 4), (3, 4), out, a, 0.0, 10)
    scale((3, 4), (3, 4), a, a, 2.0, 10)
    assert (a.tolist(), out.tolist()) == (before, [0] * 10)


def test_partially_overlapping_output_arrays_are_refused(scale: RawKernel) -> None:
    long = np.arange(20, dtype=np.float32)
    before = long.copy()
    for out, x in ((long[1:11], long[:10]), (long[:10], long[9::-1]), (long, long[::2])):
        with pytest.raises(ValueError, match=r"t_scale: .* and t_scale:.* share a part"):
            scale((3, 4), (3, 4), out, x, 2.0, 10)
    assert np.array_equal(long, before)
    scale((3, 4), (3, 4), long[::2], long[1::2], 2.0, 10)  # neighbours that share nothing
    assert long[::2].tolist() == (before[1::2] * 2).tolist()
    assert long[1::2].tolist() == before[1::2].tolist()


def test_overlapping_input_arrays_are_allowed() -> None:
    source = """__kernel void t_sums(__global float *o, __global const float *a,
        __global const float *b) { int i = get_global_id(0); o[i] = a[i] + b[i]; }"""
    out, long = np.zeros(10, np.float32), np.arange(20, dtype=np.float32)
    RawKernel(open_opencl(), source, "t_sums")(10, 10, out, long[:10], long[1:11])
    assert out.tolist() == (long[:10] + long[1:11]).tolist()


def test_read_only_array_is_not_written_back(scale: RawKernel, a: np.ndarray) -> None:
    out = np.zeros(10, np.float32)
    out.flags.writeable = False
    scale((3, 4), (3, 4), out, a, 2.0, 10)
    assert not out.any()


def test_timing_a_raw_kernel_changes_no_array(scale: RawKernel, a: np.ndarray) -> None:
    out = np.zeros(10, np.float32)
    assert scale.time((3, 4), (3, 4), out, a, 2.0, 10, runs=2) > 0
    assert not out.any()
    for runs, error in ((0, ValueError), ("a", TypeError)):
        with pytest.raises(error, match=rf"t_scale: .* runs?\b.*, not .*{runs}"):
            scale.time((3, 4), (3, 4), out, a, 2.0, 10, runs=runs)  # type: ignore[arg-type]


def test_errors_of_wrong_raw_kernel_arguments_name_the_parameter(
    scale: RawKernel, a: np.ndarray
) -> None:
    grid = (3, 4), (3, 4)
    with pytest.raises(TypeError, match=r"float\* a was given float64; use .astype"):
        scale(*grid, a, a.astype(np.float64), 1.0, 10)
    with pytest.raises(TypeError, match=r"float\* a was given float16|float\* a was given int32"):
        scale(*grid, a, Tensor(np.arange(10), scale.device), 1.0, 10)
    with pytest.raises(TypeError, match=r"float\* a was given 3; pass an array"):
        scale(*grid, a, 3, 1.0, 10)
    with pytest.raises(TypeError, match="float factor takes a number"):
        scale(*grid, a, a, a, 10)
    with pytest.raises(ValueError, match=r"uint size cannot hold 10\.5|uint size cannot hold"):
        scale(*grid, a, a, 1.0, np.int64(1 << 40))
    for wrong in (2.7, np.float32(2.7), float("nan"), float("inf"), -1, 1 << 40):
        with pytest.raises(ValueError, match=r"t_scale: uint size cannot hold|t_scale:  cannot"):
            scale(*grid, a, a, 1.0, wrong)
    with pytest.raises(TypeError, match=r"was given 'a'; pass a number"):
        scale(*grid, a, a, 1.0, "a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a Tensor of shape \(0, 2\) has no memory"):
        scale(*grid, a, Tensor(np.zeros((0, 2), np.float32), scale.device), 1.0, 10)
    with pytest.raises(TypeError, match=r"takes \(float\* out, .*uint size\); 2 arguments"):
        scale(*grid, a, a)


def test_grid_not_divisible_into_groups_is_refused(scale: RawKernel, a: np.ndarray) -> None:
    for items, group in [
        ((10, 4), (4, 4)),
        (16, (4, 4)),
        ((0, 4), (1, 4)),
        ((4,) * 4, (1,) * 4),
        ((), ()),
    ]:
        with pytest.raises(ValueError, match="do not fill a grid"):
            scale(items, group, a, a, 1.0, 10)
    for wrong in (8.5, "8", None, [3, 4]):
        with pytest.raises(TypeError, match="is no size of a grid or a group"):
            scale(wrong, (1, 1), a, a, 1.0, 10)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a time is of 1 run at least, not of 0"):
        scale.time((3, 4), (3, 4), a, a, 1.0, 10, runs=0)
    with pytest.raises(ValueError, match="too many work-items"):
        scale((1 << 20, 1 << 20), (1 << 20, 1 << 20), a, a, 1.0, 10)
    scale((3, 4), (3, 4), a, a, 1.0, 10)  # the device was not harmed


def test_local_memory_parameter_is_refused(a: np.ndarray) -> None:
    source = "__kernel void t_shares(__local float *part, __global float *out) { out[0] = 1; }"
    kernel = RawKernel(open_opencl(), source, "t_shares")
    for given in (a, 64, Tensor(a, kernel.device)):
        with pytest.raises(TypeError, match=r"__local float\* part is memory that a group shares"):
            kernel(1, 1, given, a)


def test_compile_error_shows_the_log_and_missing_kernels_are_named() -> None:
    device = open_opencl()
    with pytest.raises(DeviceError) as caught:
        RawKernel(device, "__kernel void t_bad(__global float *a) { a[0] = nothing; }", "t_bad")
    assert any("nothing" in note for note in caught.value.__notes__)
    with pytest.raises(ValueError, match="no kernel t_other"):
        RawKernel(device, SCALE, "t_other", WIDTH=4)
    commented = f"// t_other(a) is no kernel\nvoid t_helps(int a) {{}}\n{SCALE}"
    for name in ("t_other", "t_helps"):
        with pytest.raises(ValueError, match=f"no kernel {name}"):
            RawKernel(device, commented, name, WIDTH=4)


def test_binary_without_the_kernel_of_its_source_is_reported_as_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacks(_source: str, names: list[str], _options: object) -> None:
        raise driver_errors.unnamed(names[0], "INVALID_KERNEL_NAME")

    device = open_opencl()
    monkeypatch.setattr(device, "build", lacks)
    with pytest.raises(DeviceError, match="the built program has no kernel t_scale") as caught:
        RawKernel(device, SCALE, "t_scale", WIDTH=4)
    assert "devices --check" in caught.value.hint


def test_kernel_name_may_come_from_a_macro() -> None:
    source = (
        "#define KERNEL(name) __kernel void name\nKERNEL(t_named)(__global int *o) { o[0] = 7; }"
    )
    out = np.zeros(1, np.int32)
    RawKernel(open_opencl(), source, "t_named")(1, 1, out)
    assert out == 7


def test_vector_parameter_is_refused(a: np.ndarray) -> None:
    source = "__kernel void t_pair(__global float *o, float2 v) { o[0] = v.x; }"
    with pytest.raises(TypeError, match=r"float2 v is a vector.*declare float parameters"):
        RawKernel(open_opencl(), source, "t_pair")(1, 1, a, 1.0)


def test_raw_kernel_on_the_numpy_device_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"runs no OpenCL C") as caught:
        RawKernel(open_device("numpy"), SCALE, "t_scale", WIDTH=4)
    assert "imgmlp devices" in caught.value.hint
    with pytest.raises(TypeError, match=r"RawKernel: .* open_device\(\) gives, not 'cpu'"):
        RawKernel("cpu", SCALE, "t_scale", WIDTH=4)  # type: ignore[arg-type]
    for what, given in (("source", (None, "t_scale")), ("name", (SCALE, None))):
        with pytest.raises(TypeError, match=f"RawKernel: takes the {what} as text, not None"):
            RawKernel(open_device("numpy"), *given)  # type: ignore[arg-type]


def test_raw_kernel_in_a_step_or_on_foreign_tensors_is_refused(
    scale: RawKernel, a: np.ndarray
) -> None:
    device = scale.device
    x = Tensor(a, device)

    def step() -> dict[str, Tensor]:
        scale((3, 4), (3, 4), x, x, 1.0, 10)
        return {"x": x}

    with pytest.raises(TypeError, match="runs at once"):
        compile(step, device)
    assert isinstance(device, Device)
    with pytest.raises(ValueError, match="the Tensor on numpy"):
        scale((3, 4), (3, 4), Tensor(a, open_device("numpy")), x, 1.0, 10)


def test_other_threads_launch_and_assign_while_a_step_is_built(
    scale: RawKernel, a: np.ndarray
) -> None:
    """Their launches and assignments run at once and are no part of the step."""
    device = scale.device
    x, out, count = Tensor(a, device), Tensor.empty(10, device=device), Tensor(a, device)

    def meanwhile() -> list[float]:
        scale((3, 4), (3, 4), out, x, 2.0, 10)
        count.assign(out + 1)
        values: list[float] = count.numpy().tolist()
        return values

    def step() -> dict[str, Tensor]:
        with ThreadPoolExecutor(1) as other:
            assert other.submit(meanwhile).result() == (a * 2 + 1).tolist()
        x.assign(x + 1)
        return {"x": x}

    program = compile(step, device)
    program.run()
    assert x.numpy().tolist() == (a + 1).tolist()
    assert count.numpy().tolist() == (a * 2 + 1).tolist()


def test_compare_names_the_first_wrong_element(a: np.ndarray) -> None:
    compare([np.nan, 1.0000001], np.array([np.nan, 1.0]))
    with pytest.raises(AssertionError, match=r"2 of 10 .* at \(4,\): 0.0, .* says 4.0"):
        compare(np.where((a == 4) | (a == 7), 0, a), a)
    with pytest.raises(AssertionError, match=r"shape is \(2,\)"):
        compare(a[:2], a)
