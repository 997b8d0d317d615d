"""Measures the peak arithmetic throughput of a device, with chains of fused multiply-adds.

The kernel does nothing else, and its independent chains are enough to hide the latency of an
operation. Computations that move data do not come near this peak.
"""

from __future__ import annotations

import numpy as np

from imgmlp.engine import AnyDevice, Device, RawKernel

# (chains per work-item, work-items per work-group, work-groups per compute unit). A CPU core
# needs vectors, a GPU needs many work-items.
LAUNCH_SHAPES = {"cpu": (12, 1, 1), "gpu": (16, 256, 16)}
CPU_ROUNDS = 1 << 17  # multiply-adds per chain; about 2 ms on a core of 100 GFLOP/s
GPU_ROUNDS = CPU_ROUNDS >> 4
MULTIPLIER = 1e-9  # so small that the value of a chain stays finite


class Peak:
    """The kernel compiled for a device."""

    def __init__(self, device: Device) -> None:
        kind = "gpu" if device.lanes == "group" else "cpu"
        chains, self.group_size, groups = LAUNCH_SHAPES[kind]
        width = vector_width(device)
        vector = f"float{width}" if width > 1 else "float"
        self.items = self.group_size * groups * device.info.compute_units
        self.rounds = CPU_ROUNDS if kind == "cpu" else GPU_ROUNDS
        self.flops = 2 * width * chains * self.rounds * self.items
        self.kernel = RawKernel(device, kernel_source(vector, chains), "imgmlp_peak", WIDTH=width)
        self.out = np.zeros(self.items * width, np.float32)

    def gflops(self, runs: int = 8) -> float:
        """GFLOP/s in the fastest of some runs. A multiply-add counts as two operations."""
        arguments = self.out, np.float32(MULTIPLIER), np.int32(self.rounds)
        microseconds = self.kernel.time(self.items, self.group_size, *arguments, runs=runs)
        return self.flops / microseconds / 1e3


def vector_width(device: Device) -> int:
    """The number of floats in the vectors that the kernel computes with."""
    return 1 if device.lanes == "group" else device.peak_width


def described(gflops: float, device: AnyDevice) -> str:
    """A description of a peak. It names the vector width, since a CPU may have wider vectors."""
    width = vector_width(device) if isinstance(device, Device) else 1
    vectors = f" in vectors of {width}" if width > 1 else ""
    return f"{gflops:,.0f} GFLOP/s of multiply-adds{vectors}"


def kernel_source(vector: str, chains: int) -> str:
    """The kernel in OpenCL C. It stores the sums of chains, so that none is optimised away."""
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
