"""Softmax of each row of a matrix, 1823 x 781, and of its transpose without copying it.

    python examples/softmax.py [DEVICE]

A group processes a row. Its lanes load a block as long as the row, rounded up to a power of two;
elements beyond the row count as minus infinity, whose exponential is 0. Strides give the distances
to the next row and the next column, so the transpose is the same memory with swapped strides. The
engine generates its own kernel from the operations of a softmax, for comparison.
"""

from __future__ import annotations

import sys

import numpy as np

from imgmlp.engine import AnyDevice, RawKernel, Tensor, compare, compile, open_device

# BLOCK (columns rounded up) and LANES are powers of two, known when the kernel is compiled.
SOURCE = """
static float over_lanes(__local float *shared, float value, bool largest) {
  const int lane = get_local_id(0);
  shared[lane] = value;
  for (int half_ = LANES / 2; half_ > 0; half_ /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < half_) {
      const float a = shared[lane], b = shared[lane + half_];
      shared[lane] = largest ? fmax(a, b) : a + b;
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  const float found = shared[0];
  barrier(CLK_LOCAL_MEM_FENCE);  // nobody writes for the next use before all have read
  return found;
}

__kernel void row_softmax(
    __global float *y, __global const float *x, int columns,
    int x_row_stride, int x_column_stride, int y_row_stride) {
  __local float shared[LANES];
  const int lane = get_local_id(0);
  __global const float *row = x + get_group_id(0) * x_row_stride;
  float block[BLOCK / LANES], largest = -INFINITY, sum = 0;
  for (int n = 0; n < BLOCK / LANES; ++n) {
    const int column = n * LANES + lane;
    block[n] = column < columns ? row[column * x_column_stride] : -INFINITY;
    largest = fmax(largest, block[n]);
  }
  largest = over_lanes(shared, largest, true);
  for (int n = 0; n < BLOCK / LANES; ++n) sum += block[n] = exp(block[n] - largest);
  sum = over_lanes(shared, sum, false);
  for (int n = 0; n < BLOCK / LANES; ++n) {
    const int column = n * LANES + lane;
    if (column < columns) y[get_group_id(0) * y_row_stride + column] = block[n] / sum;
  }
}
"""
LANES = 64


def specification(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def by_hand(
    device: AnyDevice, x: Tensor, strides: tuple[int, int], rows: int, columns: int
) -> None:
    """Softmax of the rows of a matrix in `x` with these strides, in elements."""
    block = 1 << (columns - 1).bit_length()
    kernel = RawKernel(device, SOURCE, "row_softmax", BLOCK=block, LANES=LANES)
    y = Tensor.empty(rows, columns, device=device)
    given = (rows * LANES, LANES, y, x, columns, *strides, columns)
    kernel(*given)
    matrix = np.lib.stride_tricks.as_strided(x.numpy(), (rows, columns), [4 * s for s in strides])
    compare(y.numpy(), specification(matrix))
    milliseconds = kernel.time(*given, runs=5) / 1000
    print(f"{rows} x {columns}, strides {strides}, block {block}: {milliseconds:7.2f} ms by hand")


def generated(device: AnyDevice, x: Tensor, transpose: bool) -> None:
    """The same as an expression of Tensors."""
    program = compile(lambda: {"y": (x.transpose() if transpose else x).softmax(-1)}, device)
    program.run()
    array = x.numpy()
    compare(program.read("y"), specification(array.T if transpose else array))
    names = ", ".join(program.stages.functions)
    print(f"generated: {sum(program.time(5)) / 1000:.2f} ms in {names}\n")


def main(device: AnyDevice) -> None:
    rows, columns = 1823, 781
    x = Tensor(np.random.default_rng(0).standard_normal((rows, columns), np.float32), device)
    by_hand(device, x, (columns, 1), rows, columns)
    generated(device, x, transpose=False)
    by_hand(device, x, (1, columns), columns, rows)
    generated(device, x, transpose=True)


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
