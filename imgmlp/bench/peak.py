"""The most that a device's arithmetic can do: chains of fused multiplications and additions.

A kernel that does nothing else, with as many independent chains as hide the latency of one
operation. Nothing that has to move data gets near it.
"""

from __future__ import annotations

import numpy as np

from imgmlp.engine import AnyDevice, Device, RawKernel

# (chains of a work-item, work-items of a group, groups of a compute unit): a processor's core wants
# vectors, a graphics card many work-items.
SHAPES = {"cpu": (12, 1, 1), "gpu": (16, 256, 16)}
ROUNDS = 1 << 17  # about 2 ms on a core of 100 GFLOP/s
FACTOR = 1e-9  # keeps every chain's value finite


class Peak:
    """The kernel, compiled for a device."""

    def __init__(self, device: Device) -> None:
        kind = "gpu" if device.lanes == "group" else "cpu"
        chains, self.lanes, groups = SHAPES[kind]
        width = width_of(device)
        vector = f"float{width}" if width > 1 else "float"
        self.items = self.lanes * groups * device.info.compute_units
        self.rounds = ROUNDS if kind == "cpu" else ROUNDS >> 4
        self.flops = 2 * width * chains * self.rounds * self.items
        self.kernel = RawKernel(device, source(vector, chains), "imgmlp_peak", WIDTH=width)
        self.out = np.zeros(self.items * width, np.float32)

    def gflops(self, runs: int = 8) -> float:
        """Billions of operations a second in the best of some runs; a multiply-add is two."""
        arguments = self.out, np.float32(FACTOR), np.int32(self.rounds)
        microseconds = self.kernel.time(self.items, self.lanes, *arguments, runs=runs)
        return self.flops / microseconds / 1e3


def width_of(device: Device) -> int:
    """Floats of the vectors that it computes with."""
    return 1 if device.lanes == "group" else device.peak_width


def described(gflops: float, device: AnyDevice) -> str:
    """A peak for people, with the vectors that it is of where a processor may have wider ones."""
    width = width_of(device) if isinstance(device, Device) else 1
    vectors = f" in vectors of {width}" if width > 1 else ""
    return f"{gflops:,.0f} GFLOP/s of multiply-adds{vectors}"


def source(vector: str, chains: int) -> str:
    """OpenCL C: every work-item adds up its chains at the end, so that none is left out."""
    names = [f"a{i}" for i in range(chains)]
    start = "\n".join(f"  {vector} {name} = {i + 1}.f;" for i, name in enumerate(names))
    links = "\n".join(f"    {name} += {name} * b;" for name in names)
    return f"""
__kernel void imgmlp_peak(__global float *out, float factor, int rounds) {{
  const {vector} b = factor;
{start}
  for (int i = 0; i < rounds; ++i) {{
{links}
  }}
  *(__global {vector} *)(out + get_global_id(0) * WIDTH) = {" + ".join(names)};
}}
"""
