"""A sliding sum with a halo in local memory, and counted reads of global memory.

    python examples/pooling.py [DEVICE]

out[i] = a[i-2] + a[i-1] + a[i]. Written directly, each element is read three times from global
memory, which is slow. The second kernel reads a group's elements once, and the two before them (the
halo), into local memory that the group shares; all items wait at a barrier until everything is
there. Both kernels count their reads of `a`.
"""

from __future__ import annotations

import sys

import numpy as np

from imgmlp.engine import AnyDevice, RawKernel, compare, open_device

# GROUP is set when a kernel is compiled: the size of local memory must be known by then.
SOURCE = """
static float fetch(__global const float *a, int i, __global int *reads) {
  atomic_inc(reads);
  return a[i];
}

__kernel void pool_naive(
    __global float *out, __global const float *a, int size, __global int *reads) {
  const int i = get_global_id(0);
  if (i >= size) return;
  float sum = 0;
  for (int k = max(i - 2, 0); k <= i; ++k) sum += fetch(a, k, reads);
  out[i] = sum;
}

__kernel void pool_shared(
    __global float *out, __global const float *a, int size, __global int *reads) {
  __local float shared[GROUP + 2];
  const int i = get_global_id(0), place = get_local_id(0);
  shared[place + 2] = i < size ? fetch(a, i, reads) : 0;
  if (place < 2) shared[place] = i >= 2 && i - 2 < size ? fetch(a, i - 2, reads) : 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (i < size) out[i] = shared[place] + shared[place + 1] + shared[place + 2];
}
"""


def specification(a: np.ndarray) -> np.ndarray:
    padded = np.concatenate([[0, 0], a])
    return padded[:-2] + padded[1:-1] + padded[2:]


def pool(device: AnyDevice, name: str, a: np.ndarray, group: int) -> int:
    """Run a kernel, compare its result, and return its number of reads of global memory."""
    kernel = RawKernel(device, SOURCE, name, GROUP=group)
    out, reads = np.empty_like(a), np.zeros(1, np.int32)
    kernel(-(-a.size // group) * group, group, out, a, a.size, reads)
    compare(out, specification(a))
    return int(reads[0])


def main(device: AnyDevice) -> None:
    first = np.arange(8, dtype=np.float32)
    print(f"the sums of three of {first}: {specification(first)}\n")
    print("elements  group   naive reads   shared reads   times fewer")
    for size, group in [(8, 4), (1000, 64), (100_000, 256)]:
        a = np.arange(size, dtype=np.float32) % 11
        naive, shared = (pool(device, name, a, group) for name in ("pool_naive", "pool_shared"))
        print(f"{size:8d}  {group:5d}  {naive:12d}  {shared:13d}  {naive / shared:12.2f}")
        groups = -(-size // group)
        # The first elements have fewer before them; the first group has no halo.
        np.testing.assert_equal(naive, 3 * size - 3)
        np.testing.assert_equal(shared, size + 2 * (groups - 1))


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
