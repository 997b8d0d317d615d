"""Finds how much of a device's memory something would take, without allocating it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from imgmlp.engine.device.base import Allocation, Array, FreeMemory, Pending, counted
from imgmlp.engine.device.discover import AnyDevice
from imgmlp.engine.device.numpy_device import NumpyDevice
from imgmlp.engine.ir.usage_errors import misuse


@dataclass(frozen=True)
class Need:
    """Bytes of a device's memory: all that are in use at once, and the largest allocation."""

    total: int
    at_once: int

    def share(self, free: FreeMemory) -> float:
        """The ratio to the free memory of a device; it fits if that is at most 1."""
        pairs = (self.total, free.total), (self.at_once, free.at_once)
        return max(need / there if there else math.inf * bool(need) for need, there in pairs)


class DryRun(NumpyDevice):
    """A device with the properties of another one, whose allocations are only counted.

    Programs on it are planned but never run; what is read is zero.
    """

    def __init__(self, device: AnyDevice) -> None:
        super().__init__()
        self.info, self.lanes, self.align = device.info, device.lanes, device.align
        self.vector_width = device.vector_width
        self.can_slice, self.has_matrix_units = device.can_slice, device.has_matrix_units
        self.joins_kernels, self.keeps_groups = device.joins_kernels, device.keeps_groups
        self.has_queues = device.has_queues
        self.most = Need(0, 0)

    def alloc(self, nbytes: int) -> Allocation:
        """An Allocation without memory."""
        allocation = counted(None, nbytes, self.usage)
        total = max(self.most.total, self.usage.live_bytes)
        self.most = Need(total, max(self.most.at_once, nbytes))
        return allocation

    def write(self, allocation: Allocation, array: Array) -> None:
        """Nothing is kept."""

    def write_async(self, allocation: Allocation, array: Array) -> Pending:
        """Nothing is kept."""
        return Pending()

    def read_async(self, allocation: Allocation, array: Array) -> Pending:
        """Zeros."""
        array[...] = 0
        return Pending()

    def copy(self, source: Allocation, target: Allocation) -> None:
        """Nothing is kept."""


def memory_needed(build: Callable[[AnyDevice], object], device: AnyDevice) -> Need:
    """What `build` would take of a device's memory: its Tensors and the plans of its Programs.

    `build` is called with a device of the same properties, on which nothing runs: what it reads of
    a Tensor or an output is zero. Raises TypeError for no function, or no device.
    """
    if not callable(build) or not isinstance(device, AnyDevice):
        text = f"takes a function of a device, then a device, not {build!r} and {device!r}"
        raise misuse(TypeError, f"memory_needed: {text}")
    dry_run = DryRun(device)
    kept = build(dry_run)  # its Tensors must live until the count is read
    needed = dry_run.most
    del kept
    return needed
