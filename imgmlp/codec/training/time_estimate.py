"""How long an encode will take, estimated before anything is compiled.

This module knows no network: codecs say how many operations there are to compute.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from imgmlp.codec.training.compile_times import CompileTimes
from imgmlp.engine import AnyDevice, NumpyDevice

# Operations per second of a medium GPU, in training steps of some thousand pixels.
DEFAULT_GPU_SPEED = 3e12
# The same from a GPU's clock: the fraction of its peak that training steps reach, with the number
# of lanes that a compute unit of a newer NVIDIA GPU has. Steps of the latent codec reached 37% on
# an H200, if its clock is taken as 1,980 MHz.
LANES_PER_COMPUTE_UNIT = 128
GPU_EFFICIENCY = 0.3
TYPICAL_CORE_SPEED = 5e10  # operations per second of one CPU core
MIN_STEP_SECONDS = 4e-5  # the launches of a step take at least as long
SETUP_SECONDS = 0.5  # to set up training and decoding whose programs are in the driver's cache

# The fraction of the speed of NumPy's matrix product on one core that training reaches per core:
# compiled steps, and steps that NumPy runs.
COMPILED_EFFICIENCY = 0.82
NUMPY_EFFICIENCY = 0.175
# That product is of square matrices, so small that no library splits it between threads. Threads
# wait long for each other while other programs use the cores: a product of 4,096 rows then took up
# to 60 times as long. The fastest of TIMED_BATCHES counts.
MATRIX_SIZE = 64
PRODUCTS_PER_BATCH = 4
TIMED_BATCHES = 100


@dataclass(frozen=True)
class Work:
    """What there is to compute: training steps, and the operations of all of them together.

    A multiplication and an addition count as two operations.
    """

    steps: float
    operations: float
    programs: tuple[str, ...] = ()  # all that are needed, by their names in compile_times.py
    fixed_seconds: float = 0.0  # that it takes however fast the device computes
    kind: str = ""  # of the steps, under which compile_times.py keeps their speed

    def seconds(self, device: AnyDevice) -> float:
        """About how long the work takes on a device, including compilation."""
        times = CompileTimes(device)
        before = SETUP_SECONDS + times.expected_seconds(self.programs) + self.fixed_seconds
        speed = times.speed(self.kind) or estimate_speed(device)
        return before + max(self.steps * MIN_STEP_SECONDS, self.operations / speed)


def estimate_speed(device: AnyDevice) -> float:
    """About how many operations per second a device does.

    It is measured on CPUs, which takes some milliseconds, and follows from the clock of GPUs.
    """
    if not isinstance(device, NumpyDevice) and device.lanes == "group":
        info = device.info
        peak = 2 * LANES_PER_COMPUTE_UNIT * info.compute_units * 1e6 * info.clock
        return GPU_EFFICIENCY * peak or DEFAULT_GPU_SPEED
    matrix = np.ones((MATRIX_SIZE, MATRIX_SIZE), np.float32)
    fastest = float("inf")
    for _ in range(TIMED_BATCHES):
        began = time.perf_counter()
        for _ in range(PRODUCTS_PER_BATCH):
            matrix @ matrix
        fastest = min(fastest, time.perf_counter() - began)
    core_speed = 2 * PRODUCTS_PER_BATCH * MATRIX_SIZE**3 / max(fastest, 1e-9)
    efficiency = NUMPY_EFFICIENCY if isinstance(device, NumpyDevice) else COMPILED_EFFICIENCY
    return efficiency * device.info.compute_units * core_speed


def typical_speed(device: AnyDevice) -> float:
    """The operations per second of a typical device of this kind.

    For decisions that must not depend on a measurement, which other programs can slow down.
    """
    if isinstance(device, NumpyDevice):
        return NUMPY_EFFICIENCY / COMPILED_EFFICIENCY * TYPICAL_CORE_SPEED
    if device.lanes == "group":
        return DEFAULT_GPU_SPEED
    return TYPICAL_CORE_SPEED * device.info.compute_units
