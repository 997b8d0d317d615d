"""Feeder and Receiver: asynchronous input and output of a Program while it replays.

The device's queue runs in order. So a value that is sent between two steps is seen by the second
and not by the first, and an output is read as the steps before it have left it.
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

STAGING_BUFFERS = 2  # values of one input that may be in transfer at the same time


class Feeder:
    """Uploads new values for a Tensor that a Program reads, while earlier steps still run.

    A value is first copied to staging memory, from which the device reads by itself, so that `send`
    returns at once and its array may be changed. Raises ValueError if the Program does not read the
    Tensor, TypeError for an object that is no Tensor.
    """

    def __init__(self, program: Program, tensor: Tensor) -> None:
        check_tensor("Feeder", tensor)
        if not tensor.realized or tensor.node.arg not in program.inputs:
            raise misuse(ValueError, f"{tensor!r} is nothing that the program reads from memory")
        self.program, self.storage = program, tensor.node.arg
        shape, kind = self.storage.shape, self.storage.dtype.np
        self._staged = [program.device.staging(shape, kind) for _ in range(STAGING_BUFFERS)]
        self._pending = [Pending() for _ in range(STAGING_BUFFERS)]
        self._next = 0

    def send(self, array: Array) -> None:
        """Set the value for the steps that are enqueued from now on.

        Waits only while two earlier values are still in transfer. Raises ValueError if the shape or
        the dtype differs.
        """
        array = np.asarray(array)
        check_like(self.storage, array)
        self._pending[self._next].wait()
        staged = self._staged[self._next]
        staged[...] = array
        self._pending[self._next] = self.program.device.write_async(self.storage.data, staged)
        self.storage.is_from_host = True
        self._next = (self._next + 1) % STAGING_BUFFERS


class Receiver:
    """Reads outputs of a Program from the device without stalling its queue.

    `callback(tag, {name: array})` is called by `poll` or `wait`, in the order of the `send` calls.
    `state` names further realized Tensors to read, such as parameters that the steps assign.
    """

    def __init__(
        self,
        program: Program,
        names: Sequence[str],
        callback: Callable[[Any, dict[str, Array]], None],
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Raises ValueError for a state that the Program does not use, or that has the name of an
        output."""
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
        """Start to read all outputs, or some of them, as of after the steps enqueued so far.

        `tag` is passed to the callback. Raises ValueError for an output that has no value yet.
        """
        pending, arrays = [], {}
        for name in self.names if names is None else _listed(names):
            storage = self._state.get(name) or self.program.computed(name)
            arrays[name] = np.empty(storage.shape, storage.dtype.np)
            if storage.size:
                pending.append(self.program.device.read_async(storage.data, arrays[name]))
        self._waiting.append((tag, pending, arrays))

    def poll(self) -> None:
        """Call the callback for every `send` whose data has arrived, without waiting."""
        while self._waiting and all(p.done() for p in self._waiting[0][1]):
            self._deliver()

    def wait(self, most: int | None = None) -> None:
        """Wait for all outstanding reads, or for the first `most` of them, and deliver them."""
        for _ in range(len(self._waiting) if most is None else min(most, len(self._waiting))):
            for pending in self._waiting[0][1]:
                pending.wait()
            self._deliver()

    def _deliver(self) -> None:
        tag, _, arrays = self._waiting.pop(0)
        self.callback(tag, arrays)


def _listed(names: Sequence[str]) -> Sequence[str]:
    """The names as a list, where a single name may be given as a str."""
    return [names] if isinstance(names, str) else names
