"""Programs over blocks of data: masks, and block pointers that check bounds and advance.

    python examples/block_pointers.py [DEVICE]

A program processes a block of elements instead of a single one. A mask says which elements of the
block exist; the others are loaded as zeros and never stored. A block pointer combines what the
address arithmetic needs: the array's shape and strides, and the position of the block. Here a
program is a work-item, and its block is its private memory.
"""

from __future__ import annotations

import sys

import numpy as np

from imgmlp.engine import AnyDevice, RawKernel, compare, open_device

MASKED = """
__kernel void add_blocks(
    __global float *out, __global const float *a, __global const float *b, int size) {
  const int first = get_global_id(0) * BLOCK;
  float left[BLOCK], right[BLOCK];
  for (int i = 0; i < BLOCK; ++i) {
    const bool mask = first + i < size;
    left[i] = mask ? a[first + i] : 0;
    right[i] = mask ? b[first + i] : 0;
  }
  for (int i = 0; i < BLOCK; ++i) left[i] += right[i];
  for (int i = 0; i < BLOCK; ++i) if (first + i < size) out[first + i] = left[i];
}
"""

POINTERS = """
// ROWS x COLUMNS elements of a matrix of any strides, from (row, column) on.
typedef struct {
  __global float *base;
  int shape[2], strides[2], offsets[2];
  int order;  // the axis whose neighbours lie closest together
} block_pointer;

static block_pointer make_block_pointer(
    __global float *base, int rows, int columns, int row_stride, int column_stride,
    int row, int column) {
  block_pointer p = {base, {rows, columns}, {row_stride, column_stride}, {row, column}, 1};
  if (row_stride < column_stride) p.order = 0;
  return p;
}

static block_pointer advance(block_pointer p, int rows, int columns) {
  p.offsets[0] += rows;
  p.offsets[1] += columns;
  return p;
}

static bool inside(const block_pointer *p, int i, int j) {
  return p->offsets[0] + i < p->shape[0] && p->offsets[1] + j < p->shape[1];
}

static __global float *element(const block_pointer *p, int i, int j) {
  return p->base + (p->offsets[0] + i) * p->strides[0] + (p->offsets[1] + j) * p->strides[1];
}

// Walks along the axis of `order`, so that neighbours in memory are read one after the other.
static void load(float *block, block_pointer p) {
  for (int n = 0; n < ROWS * COLUMNS; ++n) {
    const int i = p.order == 1 ? n / COLUMNS : n % ROWS;
    const int j = p.order == 1 ? n % COLUMNS : n / ROWS;
    block[i * COLUMNS + j] = inside(&p, i, j) ? *element(&p, i, j) : 0;
  }
}

static void store_column(block_pointer p, const float *block) {
  for (int i = 0; i < ROWS; ++i) if (inside(&p, i, 0)) *element(&p, i, 0) = block[i];
}

// out[r] = sum over c of x[r, c] * weight[c], for ROWS rows a program, COLUMNS at a time.
__kernel void weighted_sum(
    __global float *out, __global float *x, __global float *weight,
    int rows, int columns, int row_stride, int column_stride, __global int *blocks) {
  const int row = get_global_id(0) * ROWS;
  block_pointer x_block =
      make_block_pointer(x, rows, columns, row_stride, column_stride, row, 0);
  block_pointer weight_block = make_block_pointer(weight, ROWS, columns, 0, 1, 0, 0);
  float sums[ROWS] = {0}, x_tile[ROWS * COLUMNS], weight_tile[ROWS * COLUMNS];
  for (int column = 0; column < columns; column += COLUMNS) {
    load(x_tile, x_block);
    load(weight_tile, weight_block);  // its row stride is 0: the same row, again and again
    for (int i = 0; i < ROWS; ++i)
      for (int j = 0; j < COLUMNS; ++j)
        sums[i] += x_tile[i * COLUMNS + j] * weight_tile[i * COLUMNS + j];
    x_block = advance(x_block, 0, COLUMNS);
    weight_block = advance(weight_block, 0, COLUMNS);
    atomic_inc(blocks);
  }
  store_column(make_block_pointer(out, rows, 1, 1, 1, row, 0), sums);
}
"""


def masks(device: AnyDevice) -> None:
    size, block = 1000, 64
    a, b = np.random.default_rng(0).standard_normal((2, size), np.float32)
    out = np.full(size + block, 7, np.float32)  # more than are ours: these must stay
    programs = -(-size // block)
    RawKernel(device, MASKED, "add_blocks", BLOCK=block)(programs, 1, out, a, b, size)
    idle = programs * block - size
    print(f"{size} elements by {programs} programs of {block}; the last masks {idle} out")
    compare(out[:size], a + b)
    compare(out[size:], np.full(block, 7))


def pointers(device: AnyDevice) -> None:
    """A matrix that no block fits, and its transpose: the same memory, other strides."""
    x = np.random.default_rng(1).standard_normal((37, 53), np.float32)
    kernel = RawKernel(device, POINTERS, "weighted_sum", ROWS=16, COLUMNS=8)
    for what, (rows, columns), strides in [
        ("matrix", x.shape, (53, 1)),
        ("its transpose", x.shape[::-1], (1, 53)),
    ]:
        weight = np.arange(columns, dtype=np.float32) / columns
        out, blocks = np.zeros(rows, np.float32), np.zeros(1, np.int32)
        programs = -(-rows // 16)
        kernel(programs, 1, out, x, weight, rows, columns, *strides, blocks)
        print(f"{what}: {programs} programs of 16 rows, {blocks[0]} blocks of 16 x 8")
        matrix = x if rows == 37 else x.T
        compare(out, matrix @ weight, atol=1e-5 * np.abs(matrix) @ weight)
        np.testing.assert_equal(blocks[0], programs * -(-columns // 8))


def main(device: AnyDevice) -> None:
    masks(device)
    pointers(device)


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
