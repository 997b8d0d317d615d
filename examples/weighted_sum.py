"""A weighted sum as a Function, with hand-written kernels forward and backward.

    python examples/weighted_sum.py [DEVICE]

y[...] = sum over d of x[..., d] * weight[d]. The forward kernel processes each row in one group,
tile by tile. The backward kernels have other shapes, because every x has a gradient, and every
weight has a sum over all rows. As part of a Function they take part in autograd. The same
computation with Tensor operations needs no hand-written kernels: the engine generates them.
"""

from __future__ import annotations

import math
import sys

import numpy as np

from imgmlp.engine import AnyDevice, Context, Function, RawKernel, Tensor, compare, open_device

SOURCE = """
// A row a group: [rows, d], [d] -> [rows]
__kernel void weighted_sum(
    __global float *y, __global const float *x, __global const float *weight, int d) {
  __local float shared[LANES];
  const int lane = get_local_id(0), row = get_group_id(0);
  float sum = 0;
  for (int tile = 0; tile < d; tile += LANES) {
    const int column = tile + lane;
    if (column < d) sum += x[row * d + column] * weight[column];
  }
  shared[lane] = sum;
  for (int half_ = LANES / 2; half_ > 0; half_ /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < half_) shared[lane] += shared[lane + half_];
  }
  if (lane == 0) y[row] = shared[0];
}

// An element an item: [rows], [d] -> [rows, d]
__kernel void by_x(
    __global float *slope, __global const float *g, __global const float *weight, int d) {
  const int column = get_global_id(0), row = get_global_id(1);
  if (column < d) slope[row * d + column] = g[row] * weight[column];
}

// A column an item, so that neighbours read neighbours: [rows], [rows, d] -> [d]
__kernel void by_weight(
    __global float *slope, __global const float *g, __global const float *x, int rows, int d) {
  const int column = get_global_id(0);
  if (column >= d) return;
  float sum = 0;
  for (int row = 0; row < rows; ++row) sum += g[row] * x[row * d + column];
  slope[column] = sum;
}
"""
LANES = 64


class WeightedSum(Function):
    """The weighted sum of x [..., d] by weight [d]; its kernels run as soon as they are called."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        *lead, d = x.shape
        y = Tensor.empty(*lead, device=x.device)
        kernel = RawKernel(x.device, SOURCE, "weighted_sum", LANES=LANES)
        kernel(math.prod(lead) * LANES, LANES, y, x, weight, d)
        return y

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        rows, d = math.prod(g.shape), x.shape[-1]
        by_x, by_weight = (Tensor.empty(*t.shape, device=x.device) for t in (x, weight))
        items = -(-d // LANES) * LANES
        each_x = RawKernel(x.device, SOURCE, "by_x", LANES=LANES)
        each_x((items, rows), (LANES, 1), by_x, g, weight, d)
        each_weight = RawKernel(x.device, SOURCE, "by_weight", LANES=LANES)
        each_weight(items, LANES, by_weight, g, x, rows, d)
        return by_x, by_weight


class Derived(Function):
    """The same with Tensor operations, which are compiled with the rest of a step."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return (x * weight).sum(-1)

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        column = g.reshape(*g.shape, 1)
        return column * weight, (column * x).sum((0, 1))


def check(device: AnyDevice, kind: type[Function]) -> None:
    """Compare values with NumPy, and gradients of a loss with a weight for each output."""
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((16, 24, 2000)), rng.standard_normal(2000)
    factors = rng.standard_normal((16, 24))
    inputs = [Tensor(a, device, requires_grad=True) for a in (x, weight)]
    answer = kind.apply(*inputs)
    sizes = np.abs(x), np.abs(weight), np.abs(factors)  # rounding is a share of what is added
    compare(answer.numpy(), x @ weight, atol=1e-6 * sizes[0] @ sizes[1])
    (answer * Tensor(factors, device)).sum().backward()
    found = [t.grad.numpy() for t in inputs if t.grad is not None]
    compare(found[0], factors[..., None] * weight)
    added = np.einsum("ij,ijd->d", sizes[2], sizes[0])
    compare(found[1], np.einsum("ij,ijd->d", factors, x), atol=1e-6 * added)
    print(f"{kind.__name__:12s} {list(x.shape)} -> {list(answer.shape)}, two gradients: right")


def main(device: AnyDevice) -> None:
    check(device, WeightedSum)
    check(device, Derived)


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
