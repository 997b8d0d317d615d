"""How long an encode will take, before anything is compiled: a guess to be told at once.

Knows no network: codecs say how much there is to compute.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from imgmlp.codec.training.compile_times import CompileTimes
from imgmlp.engine import AnyDevice, NumpyDevice

GPU = 3e12  # operations a second of a card of the middling kind, in steps of some thousand pixels
# Of what NVIDIA's can do at their clock, with so many lanes a unit as newer ones have, what steps
# reach, about; those of latents reached 37% of it on an H200, at 1,980 MHz as it was taken to have.
LANES, SHARE = 128, 0.3
CORE = 5e10  # the same of a processor's core
LAUNCHES = 4e-5  # seconds that a step takes at least
READY = 0.5  # seconds that making a step and decoding ready takes if they were compiled before
# Of what a core has of NumPy's products: what compiled steps reach, and those that NumPy runs.
REACHED, INTERPRETED = 0.82, 0.175
# A product this small is no library's to share out to threads, which wait for each other for long
# where other programs have the cores: with 4,096 rows one took up to 60 times as long then.
_WIDTH, _TURNS, _TOGETHER = 64, 100, 4


@dataclass(frozen=True)
class Work:
    """So many steps, and operations (a product and a sum count as two) of all of them.

    Programs are those that compile_times.py knows, and steps are of a `kind` of these.
    """

    steps: float
    operations: float
    programs: tuple[str, ...] = ()
    beside: float = 0.0  # seconds that it takes however fast a device computes
    kind: str = ""

    def seconds(self, device: AnyDevice) -> float:
        """About how long it takes on a device."""
        known = CompileTimes(device)
        ready = READY + known.expected(self.programs) + self.beside
        found = known.speed(self.kind) or speed(device)
        return ready + max(self.steps * LAUNCHES, self.operations / found)


def speed(device: AnyDevice) -> float:
    """Operations a second, about: of a processor by products that take some milliseconds, of a GPU
    by its clock."""
    if not isinstance(device, NumpyDevice) and device.lanes == "group":
        info = device.info
        return 2 * SHARE * LANES * info.compute_units * 1e6 * info.clock or GPU
    square = np.ones((_WIDTH, _WIDTH), np.float32)
    best = float("inf")
    for _ in range(_TURNS):
        began = time.perf_counter()
        for _ in range(_TOGETHER):
            square @ square
        best = min(best, time.perf_counter() - began)
    share = INTERPRETED if isinstance(device, NumpyDevice) else REACHED
    return share * device.info.compute_units * 2 * _TOGETHER * _WIDTH**3 / max(best, 1e-9)


def usual_speed(device: AnyDevice) -> float:
    """The same of such devices: what else runs slows a measurement, which must not decide all."""
    if isinstance(device, NumpyDevice):
        return INTERPRETED / REACHED * CORE
    return GPU if device.lanes == "group" else CORE * device.info.compute_units
