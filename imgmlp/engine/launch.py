"""Kernels of a built program, and launches of them whose arguments are set once.

What OpenCL's objects are is the device's business; here they are held, not called.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
