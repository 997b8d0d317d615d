"""What goes into a device's queue: kernels with their arguments set once, and its events.

OpenCL's objects come from the device, which also says what their failures mean.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from imgmlp.engine.device.base import Pending

Guard = Callable[[str], AbstractContextManager[None]]  # around a use of the queue, named


class Event(Pending):
    """A command in a device's queue."""

    __slots__ = ("_event", "_kept", "_queued")

    def __init__(self, event: Any, queued: Guard, kept: object = None):
        self._event = event
        self._queued = queued
        self._kept = kept  # the host array that the driver still reads or writes

    def done(self) -> bool:
        with self._queued("waiting for the device"):
            if int(self._event.command_execution_status) > 0:
                return False
            self._event.wait()  # raises what went wrong
        return True

    def wait(self) -> None:
        with self._queued("waiting for the device"):
            self._event.wait()


@dataclass(frozen=True)
class KernelHandle:
    """One kernel of a built program; bind() makes launches of it."""

    name: str
    program: Any = field(repr=False)


class Launch:
    """A kernel with its arguments, global and local size set once, to be enqueued many times."""

    __slots__ = ("_kept", "compiled", "global_size", "kernel", "local_size", "name", "program")

    def __init__(
        self,
        handle: KernelHandle,
        kernel: Any,
        global_size: tuple[int, ...],
        local_size: tuple[int, ...] | None,
        kept: object,
    ):
        self.name = handle.name
        self.program = handle.program
        self.kernel = kernel
        self.global_size = global_size
        self.local_size = local_size
        self.compiled = False  # set once its machine code is known to exist
        self._kept = kept  # OpenCL does not retain the buffers that are set as arguments
