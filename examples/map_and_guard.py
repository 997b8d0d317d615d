"""Map, zip, and the guard that keeps a work-item inside its array.

    python examples/map_and_guard.py [DEVICE]

A kernel is what one work-item does. The launch determines how many items there are (the grid) and
how many share a group; each item reads its own index. If there are more items than elements, the
surplus must do nothing: the last part shows what it overwrites without a guard.
"""

from __future__ import annotations

import sys

import numpy as np

from imgmlp.engine import AnyDevice, RawKernel, compare, open_device

SOURCE = """
__kernel void map_ten(__global float *out, __global const float *a) {
  const int i = get_global_id(0);
  out[i] = a[i] + 10;
}

__kernel void zip_add(__global float *out, __global const float *a, __global const float *b) {
  const int i = get_global_id(0);
  out[i] = a[i] + b[i];
}

__kernel void zip_guarded(
    __global float *out, __global const float *a, __global const float *b, int size) {
  const int i = get_global_id(0);
  if (i < size) out[i] = a[i] + b[i];
}
"""
SIZE = 4


def map_and_zip(device: AnyDevice) -> None:
    """One work-item for each element, all in one group."""
    a, b = np.arange(SIZE, dtype=np.float32), np.float32([5, 6, 7, 8])
    out = np.zeros_like(a)
    RawKernel(device, SOURCE, "map_ten")(SIZE, SIZE, out, a)
    print(f"map  {a} + 10 = {out}")
    compare(out, a + 10)
    RawKernel(device, SOURCE, "zip_add")(SIZE, SIZE, out, a, b)
    print(f"zip  {a} + {b} = {out}")
    compare(out, a + b)


def guard(device: AnyDevice) -> None:
    """Twice as many work-items as elements, where other values follow the elements."""
    a, b = (np.arange(2 * SIZE, dtype=np.float32) for _ in range(2))
    unguarded, guarded = (np.full(2 * SIZE, -1, np.float32) for _ in range(2))
    RawKernel(device, SOURCE, "zip_add")(2 * SIZE, SIZE, unguarded, a, b)
    RawKernel(device, SOURCE, "zip_guarded")(2 * SIZE, SIZE, guarded, a, b, SIZE)
    print(f"\n{SIZE} elements are ours, {2 * SIZE} work-items run, what follows is -1:")
    print(f"without a guard  {unguarded}   the neighbours are gone, and nothing complained")
    print(f"with a guard     {guarded}")
    compare(unguarded, a + b)
    compare(guarded[:SIZE], (a + b)[:SIZE])
    compare(guarded[SIZE:], np.full(SIZE, -1))


def many(device: AnyDevice) -> None:
    """The usual launch: as many groups of a fixed size as necessary, and a guard."""
    size, group = 1000, 256
    items = -(-size // group) * group
    a, b = np.random.default_rng(0).standard_normal((2, size), np.float32)
    out = np.empty_like(a)
    RawKernel(device, SOURCE, "zip_guarded")(items, group, out, a, b, size)
    print(f"\n{size} elements: {items // group} groups of {group}, {items - size} items idle")
    compare(out, a + b)


def main(device: AnyDevice) -> None:
    map_and_zip(device)
    guard(device)
    many(device)


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
