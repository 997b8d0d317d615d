"""Grids of two dimensions, broadcasting, and how a work-item finds its element.

    python examples/grids.py [DEVICE]

A column plus a row is a matrix. Four launches compute the same one: a single group, a grid of
groups of one item, a line of items that compute row and column themselves, and a grid of small
square groups. The last one also records which item computed which element.
"""

from __future__ import annotations

import sys

import numpy as np

from imgmlp.engine import AnyDevice, RawKernel, compare, open_device

SOURCE = """
__kernel void map_square(__global float *out, __global const float *a, int size) {
  const int i = get_global_id(0), j = get_global_id(1);
  if (i < size && j < size) out[i * size + j] = a[i * size + j] + 10;
}

__kernel void add_grid(
    __global float *out, __global const float *column, __global const float *row, int size) {
  const int i = get_global_id(0), j = get_global_id(1);
  if (i < size && j < size) out[i * size + j] = column[i] + row[j];
}

__kernel void add_line(
    __global float *out, __global const float *column, __global const float *row, int size) {
  const int flat = get_group_id(0) * get_local_size(0) + get_local_id(0);
  const int i = flat / size, j = flat % size;
  if (i < size) out[flat] = column[i] + row[j];
}

// What each item is told, and the element that it computes: [size, size, 6]
__kernel void who_am_i(__global int *out, int size) {
  const int i = get_group_id(0) * get_local_size(0) + get_local_id(0);
  const int j = get_group_id(1) * get_local_size(1) + get_local_id(1);
  __global int *own = out + 6 * (i * size + j);
  own[0] = get_group_id(0), own[1] = get_group_id(1);
  own[2] = get_local_id(0), own[3] = get_local_id(1);
  own[4] = get_global_id(0), own[5] = get_global_id(1);
}
"""
SIZE = 4


def maps(device: AnyDevice) -> None:
    """One group with the shape of the matrix."""
    a = np.arange(SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE)
    out = np.zeros_like(a)
    RawKernel(device, SOURCE, "map_square")((SIZE, SIZE), (SIZE, SIZE), out, a, SIZE)
    print(f"map of a matrix\n{out}")
    compare(out, a + 10)


def broadcasts(device: AnyDevice) -> None:
    """column [4, 1] + row [1, 4] -> [4, 4], by four kinds of launches."""
    column = np.arange(SIZE, dtype=np.float32).reshape(SIZE, 1)
    row = np.float32([[0, 100, 200, 300]])
    launches = {
        "one group that is too large": ("add_grid", (2 * SIZE, 3 * SIZE), (2 * SIZE, 3 * SIZE)),
        "a grid of groups of one item": ("add_grid", (SIZE, SIZE), (1, 1)),
        "a line of groups": ("add_line", (SIZE * SIZE,), (SIZE,)),
        "a grid of groups of 2 x 2": ("add_grid", (SIZE, SIZE), (2, 2)),
    }
    print()
    for what, (name, items, group) in launches.items():
        out = np.zeros((SIZE, SIZE), np.float32)
        RawKernel(device, SOURCE, name)(items, group, out, column, row, SIZE)
        print(f"{what:30s} grid {items}, groups of {group}")
        compare(out, column + row)
    print(out)


def indices(device: AnyDevice) -> None:
    """Group, index in the group, index in the grid: i = group * group size + index."""
    who = np.zeros((SIZE, SIZE, 6), np.int32)
    RawKernel(device, SOURCE, "who_am_i")((SIZE, SIZE), (2, 2), who, SIZE)
    print("\ngroup   local   computes")
    for i, j in [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 3)]:
        group, local, place = who[i, j].reshape(3, 2).tolist()
        print(f"{group}  {local}  out{place}")
    i, j = np.indices((SIZE, SIZE))
    compare(who[..., 4], i)
    compare(who[..., 5], j)
    compare(who[..., 0] * 2 + who[..., 2], i)
    compare(who[..., 1] * 2 + who[..., 3], j)


def main(device: AnyDevice) -> None:
    maps(device)
    broadcasts(device)
    indices(device)


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
