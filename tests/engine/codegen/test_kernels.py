"""Every hand-written OpenCL building block equals its NumPy equivalent, at odd sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import open_opencl, roundings
from reference import close

import imgmlp
from imgmlp.engine import Device
from imgmlp.engine.codegen.render import building_block, size_definitions
from imgmlp.engine.device.pocl import PLATFORM
from imgmlp.engine.ir.target import LANES_PER_GROUP, MIN_VECTOR_WIDTH, NARROW_TILE_COLUMNS, Target
from imgmlp.engine.oracle.interpret import lowbias32

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def device() -> Device:
    return open_opencl()


def test_building_blocks_are_the_files_in_the_kernels_folder() -> None:
    assert imgmlp.__file__ is not None
    files = sorted((Path(imgmlp.__file__).parent / "kernels").glob("*.cl"))
    assert len(files) > 5
    for path in files:
        assert building_block(path.stem) == path.read_text("utf-8")


class Bench:
    """Launches kernels of one source on arrays, and returns the first argument."""

    def __init__(
        self, device: Device, blocks: list[str], source: str, vector: int = MIN_VECTOR_WIDTH
    ) -> None:
        if vector > device.vector_width:
            pytest.skip(f"{device.info.name} has no vectors of {vector}")
        self.device = device
        self.source = (
            size_definitions(Target(vector_width=vector))
            + "\n".join(map(building_block, blocks))
            + source
        )

    def __call__(
        self, name: str, out: Array, *args: Array | np.generic, items: int = 1, local: int = 1
    ) -> Array:
        kernel = self.device.build(self.source, [name])[name]
        bound: list[Any] = []
        for a in (out, *args):
            if isinstance(a, np.ndarray):
                allocation = self.device.alloc(a.nbytes)
                self.device.write(allocation, a)
                bound.append(allocation)
            else:
                bound.append(a)
        self.device.launch_all([self.device.bind(kernel, bound, (items,), (local,))])
        actual = np.empty_like(out)
        self.device.read(bound[0], actual)
        return actual


def within_units(actual: Array, wanted: Array, units: float) -> bool:
    """Whether all errors are at most `units` units in the last place of float32."""
    return bool((np.abs(actual - wanted) <= units * np.spacing(wanted.astype(np.float32))).all())


@pytest.mark.parametrize("groups", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 100, 101])
def test_shares_of_groups_cover_every_item_once(device: Device, groups: int, count: int) -> None:
    bench = Bench(
        device,
        ["scalar"],
        """__kernel void t_share(__global int *out, int count) {
             for (int i = share_begin(count); i < share_end(count); ++i) out[i] += 1; }""",
    )
    actual = bench("t_share", np.zeros(128, np.int32), np.int32(count), items=groups)
    assert actual.tolist() == [1] * count + [0] * (128 - count)


def test_lowbias32_equals_the_numpy_implementation_and_is_a_bijection(device: Device) -> None:
    bench = Bench(
        device,
        ["scalar"],
        """__kernel void t_hash(__global uint *out, __global const uint *in) {
             const int i = get_global_id(0); out[i] = lowbias32(in[i]); }""",
    )
    x = np.concatenate([np.arange(500), 2**32 - 1 - np.arange(500)]).astype(np.uint32)
    actual = bench("t_hash", np.zeros(1000, np.uint32), x, items=1000)
    assert np.array_equal(actual, lowbias32(x))
    assert len(set(actual.tolist())) == 1000  # a bijection


def test_power_of_two_is_accurate_to_one_unit_in_the_last_place(device: Device) -> None:
    bench = Bench(
        device,
        ["scalar"],
        """__kernel void t_power(__global float *out, __global const float *in) {
             const int i = get_global_id(0); out[i] = power_of_two(in[i]); }""",
    )

    def powers(x: Array) -> Array:
        return bench("t_power", np.zeros(len(x), np.float32), x.astype(np.float32), items=len(x))

    pocl = device.info.platform == PLATFORM
    whole = np.arange(-149.0, 128.0)
    assert within_units(powers(whole), np.exp2(whole), 0 if pocl else 3)
    rng = np.random.default_rng(6)
    for reach in (1, 148):  # down to 2**-148, which has one bit only
        x = rng.uniform(-reach, min(reach, 127.99), 4000).astype(np.float32)
        expected = np.exp2(x.astype(np.float64))
        assert within_units(powers(x), expected, 1.5 if pocl else 3)
    edges = np.array([-np.inf, -1e30, -151, 128, 1e30, np.inf, np.nan, -0.0, 1e-30])
    with np.errstate(over="ignore"):
        assert np.array_equal(
            powers(edges), [0, 0, 0, np.inf, np.inf, np.inf, np.nan, 1, 1], equal_nan=True
        )


def test_integer_division_rounds_towards_minus_infinity(device: Device) -> None:
    bench = Bench(
        device,
        ["scalar"],
        """__kernel void t_div(__global int *out, __global const int *a, __global const int *b) {
             const int i = get_global_id(0);
             out[2 * i] = floor_div(a[i], b[i]); out[2 * i + 1] = floor_mod(a[i], b[i]); }""",
    )
    a, b = (
        v.ravel().astype(np.int32) for v in np.meshgrid(np.arange(-9, 10), [-4, -3, -1, 1, 3, 5])
    )
    actual = bench("t_div", np.zeros((a.size, 2), np.int32), a, b, items=a.size)
    assert np.array_equal(actual[:, 0], a // b)
    assert np.array_equal(actual[:, 1], a % b)


def test_square_root_is_as_accurate_as_opencl_demands(device: Device) -> None:
    bench = Bench(
        device,
        ["scalar"],
        """__kernel void t_root(__global float *out, __global const float *in) {
             const int i = get_global_id(0); out[i] = square_root(in[i]); }""",
    )
    x = np.geomspace(1e-30, 1e30, 999).astype(np.float32)
    assert within_units(
        bench("t_root", np.zeros_like(x), x, items=x.size), np.sqrt(x), roundings(device)
    )


@pytest.mark.parametrize(("lanes", "results"), [(64, 1), (128, 1), (128, 16)])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float", np.float32),
        ("int", np.int32),
        ("uint", np.uint32),
        ("char", np.int8),
        ("uchar", np.uint8),
    ],
)
def test_group_sum_and_group_max_equal_numpy(
    device: Device, lanes: int, results: int, name: str, dtype: type
) -> None:
    bench = Bench(
        device,
        ["scalar", "reduce"],
        f"""__kernel void t_group(__global {name} *out, __global const {name} *in) {{
              __local {name} scratch[128];
              const int i = get_global_id(0), n = {lanes};
              const {name} total = group_sum_{name}(scratch, in[i], n, {results});
              barrier(CLK_LOCAL_MEM_FENCE);
              out[2 * i] = total;
              out[2 * i + 1] = group_max_{name}(scratch, in[i], n, {results}); }}""",
    )
    lowest = 0 if name.startswith("u") else -500
    # bytes wrap, and so do their sums
    x = np.random.default_rng(0).integers(lowest, lowest + 1000, 3 * lanes).astype(dtype)
    actual = bench("t_group", np.zeros((x.size, 2), dtype), x, items=x.size, local=lanes)
    groups = x.reshape(3, -1, results)
    actual = actual.reshape(*groups.shape, 2)  # [groups, lanes that get the same, results, 2]
    assert np.array_equal(actual[..., 0], groups.sum(1, keepdims=True, dtype=dtype) + 0 * groups)
    assert np.array_equal(actual[..., 1], groups.max(1, keepdims=True) + 0 * groups)


PRODUCT_ONE = """
__kernel void t_product(__global float *out, __global const float *x, __global const float *y,
                        int xr, int xk, int yk, int yc, int rows, int columns, int inner,
                        int direct) {
  float tile[65 * VECTOR] __attribute__((aligned(64)));
  if (direct) tile_product_direct(tile, x, xr, xk, y, yk, yc, rows, columns, inner);
  else tile_product_packed(tile, x, xr, xk, y, yk, yc, rows, columns, inner);
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) out[i * columns + j] = tile[i * VECTOR + j];
  float sums[VECTOR] __attribute__((aligned(64)));
  column_sums(sums, y, yk, yc, columns, inner);
  for (int j = 0; j < columns; ++j) out[rows * columns + j] = sums[j];
}
"""

PRODUCT_REGISTERS = """
#define CASE(R, V, N, KIND)                                                            \\
  if (height == R && width == N * V) {                                                 \\
    PRODUCT##KIND(R, V, sums, x, xr, xk, __private, panel, N * V, rows, inner)         \\
    TO_MEMORY##KIND(R, V, tile, sums)                                                  \\
    for (int i = 0; i < rows; ++i)                                                     \\
      for (int j = 0; j < columns; ++j) out[i * columns + j] = tile[i * N * V + j];    \\
  }
__kernel void t_registers(__global float *out, __global const float *x, __global const float *y,
                          int xr, int xk, int yk, int yc, int rows, int columns, int inner,
                          int height, int width) {
  float panel[300 * VECTOR] __attribute__((aligned(64)));
  pack_panel(panel, y, yk, yc, columns, width, inner);
  CASE(6, 2, NARROW, )
  CASE(5, 2, NARROW, )
  CASE(1, 2, NARROW, )
  CASE(8, 1, NARROW, )
#if NARROW == 16
  CASE(8, 2, NARROW, )
  CASE(8, 1, 8, _8)
#endif
}
"""

DOT_PRODUCTS = """
#define CASE(R, C, EIGHTS)                                                           \\
  if (rows == R && columns == C) {                                                   \\
    DOT_PRODUCTS(R, C, EIGHTS, found, x, inner, y, inner, R, inner)                 \\
    for (int i = 0; i < R * C; ++i) out[i] = ((const float *)found)[i];              \\
  }
__kernel void t_along(__global float *out, __global const float *x, __global const float *y,
                      int rows, int columns, int inner) {
  CASE(1, 1, 1)
  CASE(2, 8, 2)
  CASE(1, 8, 1)
  CASE(5, 3, 2)
  CASE(2, 7, 2)
}
"""

PRODUCT_GROUP = """
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
void t_product(__global float *out, __global const float *x, __global const float *y,
               int xr, int xk, int yk, int yc, int rows, int columns, int inner, int direct) {
  __local float workspace[TILE_FLOATS] __attribute__((aligned(16)));
  float tile[32] = {0.f};
  const float sum =
      PRODUCT(tile, workspace, x, xr, xk, direct, y, yk, yc, direct, rows, columns, inner);
  SPREAD(workspace, tile);
  const int lane = get_local_id(0);
  for (int i = lane; i < rows * columns; i += LANES)
    out[i] = workspace[i / columns * TILE_PITCH + i % columns];
  if (lane < columns) out[rows * columns + lane] = sum;
}
"""


def check_product(
    bench: Bench, rows: int, inner: int, columns: int, flip: int, direct: bool, local: int
) -> None:
    """Compares a product kernel with NumPy, in sums of up to 600 terms.

    Bit 0 of `flip` stores the left factor by columns, bit 1 the right one.
    """
    rng = np.random.default_rng(rows + inner)
    x = rng.standard_normal((rows, inner)).astype(np.float32)
    y = rng.standard_normal((inner, columns)).astype(np.float32)
    left = np.ascontiguousarray(x.T) if flip & 1 else x
    right = np.ascontiguousarray(y.T) if flip & 2 else y
    strides = (1, rows) if flip & 1 else (inner, 1)
    strides += (1, inner) if flip & 2 else (columns, 1)
    numbers = [np.int32(v) for v in (*strides, rows, columns, inner, direct)]
    out = np.zeros((rows + 1, columns), np.float32)
    actual = bench("t_product", out, left, right, *numbers, items=local, local=local)
    wide = y.astype(np.float64)
    assert close(actual[:-1], x.astype(np.float64) @ wide, np.abs(x) @ np.abs(wide), inner + 2)
    assert close(actual[-1], wide.sum(0), np.abs(wide).sum(0), inner + 2)


@pytest.mark.parametrize("inner", [1, 3, 255, 256, 257, 600])
@pytest.mark.parametrize("rows", [1, 3, 4, 7, 64, 65])
@pytest.mark.parametrize("vector", [8, 16])
def test_tile_product_by_one_work_item_equals_numpy(
    device: Device, vector: int, rows: int, inner: int
) -> None:
    bench, wide = Bench(device, ["vectors", "product_one"], PRODUCT_ONE, vector), 2 * vector
    for columns, flip in ((wide, 0), (wide, 1), (wide, 2), (1, 3), (5, 0), (13, 2), (vector, 0)):
        check_product(bench, rows, inner, columns, flip, direct=False, local=1)
    check_product(bench, rows, inner, wide, 0, direct=True, local=1)
    check_product(bench, rows, inner, wide, 1, direct=True, local=1)


@pytest.mark.parametrize("inner", [16, 128, 272])
@pytest.mark.parametrize("vector", [8, 16])
def test_product_vectorised_along_terms_equals_numpy(
    device: Device, vector: int, inner: int
) -> None:
    bench, rng = (
        Bench(device, ["vectors", "product_one"], DOT_PRODUCTS, vector),
        np.random.default_rng(inner),
    )
    for rows, columns in ((1, 1), (2, 8), (1, 8), (5, 3), (2, 7)):
        x = rng.standard_normal((rows, inner)).astype(np.float32)
        y = rng.standard_normal((columns, inner)).astype(np.float32)
        out = np.zeros((rows, columns), np.float32)
        actual = bench("t_along", out, x, y, *map(np.int32, (rows, columns, inner)))
        assert close(actual, x.astype(np.float64) @ y.T, np.abs(x) @ np.abs(y.T), inner + 2)


@pytest.mark.parametrize("inner", [1, 64, 256])
@pytest.mark.parametrize("vector", [8, 16])
def test_product_in_registers_equals_numpy(device: Device, vector: int, inner: int) -> None:
    bench = Bench(device, ["vectors", "product_one"], PRODUCT_REGISTERS, vector)
    rng, wide = np.random.default_rng(inner), 2 * vector
    others = [(8, 32), (8, 8)] if vector == 16 else []
    for height, width in ((6, wide), (5, wide), (1, wide), (8, vector), *others):
        for rows, columns in ((height, width), (height, 3), (1, width)):  # the last are not whole
            x = rng.standard_normal((rows, inner)).astype(np.float32)
            y = rng.standard_normal((inner, columns)).astype(np.float32)
            for flip in (False, True):  # by rows, by columns
                arrays = [np.ascontiguousarray(a.T) if flip else a for a in (x, y)]
                steps = [(1, len(a)) if flip else (a.shape[1], 1) for a in (x, y)]
                sizes = (*steps[0], *steps[1], rows, columns, inner, height, width)
                numbers = [np.int32(n) for n in sizes]
                out = np.zeros((rows, columns), np.float32)
                actual = bench("t_registers", out, *arrays, *numbers)
                assert close(actual, x.astype(np.float64) @ y, np.abs(x) @ np.abs(y), inner + 2)


@pytest.mark.parametrize("inner", [1, 31, 32, 33, 128, 130])
@pytest.mark.parametrize("rows", [1, 8, 15, 32, 63, 64])
def test_tile_product_by_a_group_equals_numpy(device: Device, rows: int, inner: int) -> None:
    own = next(n for n in (1, 2, 4, 8) if 8 * n >= rows)
    which = f"#define PRODUCT tile_product_{own}\n#define SPREAD spread_{own}\n"
    bench = Bench(device, ["factor", "product_group"], which + PRODUCT_GROUP)
    for columns, flip in ((64, 0), (64, 3), (1, 1), (19, 2), (63, 0)):
        aligned = inner % 4 == 0 and rows % 4 == 0 and columns == 64
        check_product(bench, rows, inner, columns, flip, direct=aligned, local=LANES_PER_GROUP)


@pytest.mark.parametrize("inner", [1, 33, 64])
@pytest.mark.parametrize("rows", [33, 64])
def test_narrow_tile_product_by_a_group_equals_numpy(device: Device, rows: int, inner: int) -> None:
    which = "#define PRODUCT tile_product_narrow\n#define SPREAD spread_narrow\n"
    bench = Bench(device, ["factor", "product_group"], which + PRODUCT_GROUP)
    for columns, flip in (
        (3, 0),
        (3, 3),
        (1, 1),
        (NARROW_TILE_COLUMNS, 2),
        (NARROW_TILE_COLUMNS, 1),
    ):
        aligned = inner % 4 == 0 and rows % 4 == 0 and columns == NARROW_TILE_COLUMNS
        check_product(bench, rows, inner, columns, flip, direct=aligned, local=LANES_PER_GROUP)


def test_two_kernels_with_group_products_in_one_program_are_right(device: Device) -> None:
    """PoCL miscompiled a loop that fetched slices at two places and was shared by two kernels."""
    both = "".join(
        f"""__kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
        void t_{inner}(__global float *out, __global const float *x, __global const float *y) {{
          __local float workspace[TILE_FLOATS] __attribute__((aligned(16)));
          float tile[4] = {{0.f}};
          tile_product_1(tile, workspace, x, {inner}, 1, 0, y, {columns}, 1, 0,
                         8, {columns}, {inner});
          spread_1(workspace, tile);
          for (int i = get_local_id(0); i < 8 * {columns}; i += LANES)
            out[i] = workspace[i / {columns} * TILE_PITCH + i % {columns}];
        }}"""
        for inner, columns in ((55, 63), (54, 61))
    )
    bench = Bench(device, ["factor", "product_group"], both)
    x = np.arange(8 * 55, dtype=np.float32).reshape(8, 55) % 7
    y = np.arange(55 * 63, dtype=np.float32).reshape(55, 63) % 5
    actual = bench(
        "t_55", np.zeros((8, 63), np.float32), x, y, items=LANES_PER_GROUP, local=LANES_PER_GROUP
    )
    assert np.array_equal(actual, x @ y)
