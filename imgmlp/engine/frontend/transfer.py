"""What goes to a Program and comes from it while it replays, without anyone waiting.

The device's queue runs in order: a value that is sent between two steps is read by the second
and not by the first, and an output is read as the steps before it left it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from imgmlp.engine.device.base import Pending
from imgmlp.engine.frontend.tensor import Tensor
from imgmlp.engine.ir.dtype import Array
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations.elementwise import check_tensor
from imgmlp.engine.runtime.buffers import check_like
from imgmlp.engine.runtime.program import Program

AHEAD = 2  # values of an input that may be on their way at once


class Feeder:
    """New values for a Tensor that a Program reads, uploaded while earlier steps still run.

    Values are copied to memory that the device reads by itself, so that `send` returns at once
    and its array may be changed. Raises ValueError if the Program does not read the Tensor,
    TypeError for what is none.
    """

    def __init__(self, program: Program, tensor: Tensor) -> None:
        check_tensor("Feeder", tensor)
        if not tensor.realized or tensor.node.arg not in program.inputs:
            raise misuse(ValueError, f"{tensor!r} is nothing that the program reads from memory")
        self.program, self.storage = program, tensor.node.arg
        shape, kind = self.storage.shape, self.storage.dtype.np
        self._staged = [program.device.staging(shape, kind) for _ in range(AHEAD)]
        self._pending = [Pending() for _ in range(AHEAD)]
        self._next = 0

    def send(self, array: Array) -> None:
        """Give the steps that are enqueued from now on a new value.

        Waits only while two earlier values are still on their way. Raises ValueError if shape
        or dtype differ.
        """
        array = np.asarray(array)
        check_like(self.storage, array)
        self._pending[self._next].wait()
        staged = self._staged[self._next]
        staged[...] = array
        self._pending[self._next] = self.program.device.write_async(self.storage.data, staged)
        self.storage.is_from_host = True
        self._next = (self._next + 1) % AHEAD


class Receiver:
    """Outputs of a Program, read from the device without stalling its queue.

    `callback(tag, {name: array})` is called from `poll` or `wait`, in the order of `send`. `state`
    names Tensors in memory that are read as well, such as those that the steps move.
    """

    def __init__(
        self,
        program: Program,
        names: Sequence[str],
        callback: Callable[[Any, dict[str, Array]], None],
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Raises ValueError for a Tensor that the Program does not have in memory, or one with the
        name of an output."""
        state = state or {}
        if both := sorted(set(state) & set(program.outputs)):
            raise misuse(
                ValueError, f"{both[0]} is an output of the program: give the state another"
            )
        names = _listed(names)
        for name in names:
            program.storage(name)
        for tensor in state.values():
            if not tensor.realized or tensor.node.arg not in program.inputs:
                raise misuse(ValueError, f"{tensor!r} is nothing that the program has in memory")
        self.program, self.callback = program, callback
        self.names = [*names, *state]
        self._state = {name: tensor.node.arg for name, tensor in state.items()}
        self._waiting: list[tuple[Any, list[Pending], dict[str, Array]]] = []

    def send(self, tag: Any = None, names: Sequence[str] | None = None) -> None:
        """Read the outputs, or some of them, as they are after the steps enqueued so far.

        Raises ValueError for one that no step has given a value yet.
        """
        pending, arrays = [], {}
        for name in self.names if names is None else _listed(names):
            storage = self._state.get(name) or self.program.computed(name)
            arrays[name] = np.empty(storage.shape, storage.dtype.np)
            if storage.size:
                pending.append(self.program.device.read_async(storage.data, arrays[name]))
        self._waiting.append((tag, pending, arrays))

    def poll(self) -> None:
        """Deliver what has arrived."""
        while self._waiting and all(p.done() for p in self._waiting[0][1]):
            self._deliver()

    def wait(self, most: int | None = None) -> None:
        """Deliver everything that was sent for, or the first ones of it, at most so many."""
        for _ in range(len(self._waiting) if most is None else min(most, len(self._waiting))):
            for pending in self._waiting[0][1]:
                pending.wait()
            self._deliver()

    def _deliver(self) -> None:
        tag, _, arrays = self._waiting.pop(0)
        self.callback(tag, arrays)


def _listed(names: Sequence[str]) -> Sequence[str]:
    """Names, of which a single one may stand for a list of it."""
    return [names] if isinstance(names, str) else names
