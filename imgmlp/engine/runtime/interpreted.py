"""A step on NumPy's device: its Nodes, or a form that they were lowered to, run on host memory.

Buffers are changed in place. Nothing here knows drivers, launches, or how a Program replays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from imgmlp.engine.device.base import Form
from imgmlp.engine.device.numpy_device import host_memory
from imgmlp.engine.ir.dtype import Array
from imgmlp.engine.ir.graph import Buffer, toposort
from imgmlp.engine.ir.kernel import Update
from imgmlp.engine.ir.op import Op
from imgmlp.engine.oracle.interpret import Evaluation, peak_bytes, value_bytes
from imgmlp.errors import OutOfMemoryError

if TYPE_CHECKING:
    from imgmlp.engine.compiler import Stages


class Interpreted:
    """The Nodes of a step, ready to be run again and again."""

    def __init__(self, updates: Sequence[Update]) -> None:
        self._states = [state for state, _ in updates]
        values = [value for _, value in updates]
        order = toposort(values)
        self._buffers = [n.arg for n in order if n.op is Op.BUFFER]
        self._evaluation, self._all_bytes = Evaluation(values), sum(map(value_bytes, order))

    def run(self) -> None:
        """Give each state its new value. Raises OutOfMemoryError."""
        self._check_memory()
        try:
            held = {b: host_view(b) for b in self._buffers}
            values = [v.copy() for v in self._evaluation.run(held)]
        except MemoryError as error:
            problem = "the values of a step do not fit in this machine's memory"
            hint = "use a smaller picture or batch"
            raise OutOfMemoryError(problem, hint=hint) from error
        for state, value in zip(self._states, values, strict=True):
            host_view(state)[...] = value

    def _check_memory(self) -> None:
        """Refuse what there is no memory for, as the system might end the process."""
        if not 0 < host_memory() < self._all_bytes:  # of which few are held at once
            return
        at_once = peak_bytes(self._evaluation.roots)
        if host_memory() < at_once:
            problem = f"the values of a step take {at_once:,} bytes at once"
            hint = "use a smaller picture, batch or network"
            raise OutOfMemoryError(f"{problem}, this machine has {host_memory():,}", hint=hint)


def run_lowered(stages: Stages, form: Form) -> None:
    """Run a step's kernels by their expressions ("procedure"), or by their instructions."""
    from imgmlp.engine.oracle import emulate_kernels, emulate_uops  # which few programs need

    memory = _memory(stages)
    if form == "procedure":
        emulate_kernels.run_procedure(stages.procedure, memory)
        return
    for position in stages.procedure.order():
        emulate_uops.run_code(stages.codes[position], memory)


def _memory(stages: Stages) -> dict[Buffer, Array]:
    """Every Buffer's elements; those of intermediates make no sense until written."""
    planned = stages.memory
    arena = np.full(planned.arena_bytes, 0xFF, np.uint8)
    named = {b for code in stages.codes for b in code.buffers}
    # instructions leave out what lies outside of a mask everywhere
    named.update(b for kernel in stages.procedure.kernels for b in kernel.reads())
    memory = {b: host_view(b).reshape(-1) for b in named - planned.offsets.keys()}
    for storage, offset in planned.offsets.items():
        memory[storage] = arena[offset : offset + storage.nbytes].view(storage.dtype.np)
    return memory


def host_view(storage: Buffer) -> Array:
    """The data of a Buffer of the NumPy device, not a copy."""
    data: Array = storage.data.handle[: storage.nbytes]
    return data.view(storage.dtype.np).reshape(storage.shape)
