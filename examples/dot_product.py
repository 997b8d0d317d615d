"""A dot product by a tree reduction in each group and one atomic addition per group; and a race.

    python examples/dot_product.py [DEVICE]

Items of a group add pairs, then pairs of pairs, in local memory: 8 rounds for 256 items. Each
group's sum is added to one number in global memory, which all groups change concurrently, so
reading, adding and writing must be one atomic operation. The last part separates them and counts
the lost additions: first in the worst case, where all items read before any writes, and then as it
happens to be.
"""

from __future__ import annotations

import sys

import numpy as np

from imgmlp.engine import AnyDevice, RawKernel, compare, open_device

SOURCE = """
// OpenCL 1.2 has no atomic addition of floats: try until nobody came in between.
static void atomic_add_float(volatile __global float *place, float value) {
  uint seen = as_uint(*place), before;
  do {
    before = seen;
    const uint wanted = as_uint(as_float(before) + value);
    seen = atomic_cmpxchg((volatile __global uint *)place, before, wanted);
  } while (seen != before);
}

__kernel void dot_tree(
    __global float *out, __global const float *a, __global const float *b, int size) {
  __local float shared[GROUP];
  const int i = get_global_id(0), place = get_local_id(0);
  shared[place] = i < size ? a[i] * b[i] : 0;
  for (int half_ = GROUP / 2; half_ > 0; half_ /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (place < half_) shared[place] += shared[place + half_];
  }
  if (place == 0) atomic_add_float(out, shared[0]);
}

// Each item adds 1; the barrier makes sure that all have read before the first one writes.
__kernel void count_apart(volatile __global int *count) {
  const int seen = count[0];
  barrier(CLK_GLOBAL_MEM_FENCE);
  count[0] = seen + 1;
}

// Each group adds 1 to a counter, `times` times; `volatile` keeps read and write apart.
__kernel void count_torn(volatile __global int *count, int times) {
  for (int n = 0; n < times; ++n) count[0] = count[0] + 1;
}

__kernel void count_atomic(volatile __global int *count, int times) {
  for (int n = 0; n < times; ++n) atomic_inc(count);
}
"""
GROUP = 256


def tree(a: np.ndarray) -> tuple[float, list[int]]:
    """The same additions in NumPy, and how many there are in each round."""
    shared, rounds = a.copy(), []
    while shared.size > 1:
        half = shared.size // 2
        rounds.append(half)
        shared = shared[:half] + shared[half:]
    return float(shared[0]), rounds


def dot(device: AnyDevice, size: int) -> None:
    a = np.random.default_rng(size).random(size, np.float32)
    b = np.arange(size, dtype=np.float32)
    kernel = RawKernel(device, SOURCE, "dot_tree", GROUP=GROUP)
    groups, out = -(-size // GROUP), np.zeros(1, np.float32)
    kernel(groups * GROUP, GROUP, out, a, b, size)
    print(f"{size:9,d} elements  {groups:5d} groups  {out[0]:16,.1f}  NumPy {a @ b:16,.1f}")
    compare(out[0], a.astype(np.float64) @ b, rtol=1e-5)


def race(device: AnyDevice) -> None:
    """Additions that are not atomic lose some; how many depends on the timing of a run."""
    count = np.zeros(1, np.int32)
    RawKernel(device, SOURCE, "count_apart", GROUP=GROUP)(GROUP, GROUP, count)
    print(f"count_apart   {count[0]:10,d} of {GROUP}, {GROUP - int(count[0])} lost")
    np.testing.assert_equal(count[0], 1)  # all of them read 0
    groups, times = 64, 1_000_000
    expected, lost = groups * times, {}
    for name in ("count_atomic", "count_torn"):
        count = np.zeros(1, np.int32)
        RawKernel(device, SOURCE, name, GROUP=GROUP)(groups, 1, count, times)
        lost[name] = expected - int(count[0])
        print(f"{name:13s} {count[0]:10,d} of {expected:,}, {lost[name]:,} lost")
    np.testing.assert_equal(lost["count_atomic"], 0)
    assert 0 <= lost["count_torn"] < expected
    if not lost["count_torn"]:
        print("None was lost here: the groups ran one after the other. Nothing promises that; the")
        print("kernel is as wrong as the first one, and will show it on another day.")


def main(device: AnyDevice) -> None:
    values = np.float32([3, 1, 4, 1, 5, 9, 2, 6])
    found, rounds = tree(values)
    print(f"the tree for {values}: {rounds} additions in rounds, {found}\n")
    compare(found, values.sum())
    for size in (800, 1_000_003):
        dot(device, size)
    print()
    race(device)


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
