"""Whether programs keep to their memory plan: what it holds free is spoilt, and nobody notices."""

from __future__ import annotations

import numpy as np

from imgmlp.engine.device.opencl import Device
from imgmlp.engine.runtime.program import Program

POISON = 0xFF  # in every byte: NaN as a float, -1 as a signed integer


def run_poisoned(program: Program) -> None:
    """As `program.run()`, but kernel by kernel, before each of which memory not in use is spoilt.

    What the memory plan says holds no value that is still needed is overwritten with POISON. A
    program that keeps to its plan gives the same bits as ever.
    """
    if not isinstance(program.device, Device):
        program.run()
        return
    for position in program.stages.procedure.order():
        _spoil_free_bytes(program, program.device, position)
        program.device.launch_all([program.launches[position]])
    program._unset.clear()


def _spoil_free_bytes(program: Program, device: Device, position: int) -> None:
    plan = program.stages.memory
    free = np.ones(plan.arena_bytes, np.bool_)
    for storage in plan.live_before(position):
        begin = plan.offsets[storage]
        free[begin : begin + storage.nbytes] = False
    for start, allocation in zip(plan.allocation_offsets(), program.arena, strict=True):
        content = np.empty(allocation.nbytes, np.uint8)
        device.read(allocation, content)
        content[free[start : start + allocation.nbytes]] = POISON
        device.write(allocation, content)
