"""Host memory as a device, on which programs are interpreted and never compiled.

It needs no driver, and is always there.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any

import numpy as np

from imgmlp.engine.device.base import (
    ALIGN,
    Allocation,
    Array,
    DeviceInfo,
    Form,
    FreeMemory,
    HostCopies,
    Pending,
    Usage,
    check_array,
    check_fits,
    check_slice,
    counted,
)
from imgmlp.engine.ir.target import Lanes
from imgmlp.errors import OutOfMemoryError

# Of glibc's mallopt(3), with bytes: freed memory that it keeps, and from what size on it asks the
# system for an array's alone, which is as much as it takes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = (-1, 2**28), (-3, 2**25)
# By which whoever started this process has decided about that.
_DECIDED = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@cache
def _keep_freed_memory() -> None:
    """Have this process keep the memory of arrays for the next ones, where that is possible.

    A step has some hundred arrays of the same sizes. By its usual settings glibc gives each of some
    MB back to the system, which clears it when it is wanted again: up to half of a step's time.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _DECIDED):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # which musl does not have
    if mallopt is not None:
        mallopt(*_TRIM_THRESHOLD)
        mallopt(*_MMAP_THRESHOLD)


class NumpyDevice(HostCopies):
    """Host memory behind the same calls; programs on it are interpreted, never compiled.

    `form` says which form of them: the Nodes, or what a device with these lanes would be
    given, kernel by kernel or instruction by instruction.
    """

    align: int = ALIGN
    can_slice: bool = True
    has_matrix_units: bool = False
    keeps_groups: bool = False
    has_queues: bool = False
    builds_in_parts: bool = False
    joins_kernels: bool = True
    vector_width: int = 8
    lost = ""

    def __init__(self, spec: str = "numpy") -> None:
        _keep_freed_memory()
        self.form, self.lanes = NUMPY_FORMS[spec]
        self.info = numpy_info(spec)
        self.usage = Usage()

    def alloc(self, nbytes: int) -> Allocation:
        """As Device.alloc; the bytes are zero."""
        try:
            if 0 < self.info.memory < self.usage.live_bytes + nbytes:
                raise MemoryError
            return counted(np.zeros(nbytes, np.uint8), nbytes, self.usage)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"{nbytes:,} bytes do not fit in this machine's memory",
                hint="use a smaller picture or batch",
            ) from error

    def free_memory(self) -> FreeMemory:
        """As Device.free_memory: what this machine has and this device has not given yet."""
        left = max(0, self.info.memory - self.usage.live_bytes)
        return FreeMemory(left, left)

    def slice(self, allocation: Allocation, offset: int, nbytes: int) -> Allocation:
        """As Device.slice."""
        check_slice(allocation, offset, nbytes, self.align)
        start = allocation.offset + offset
        region = allocation.root.handle[start : start + nbytes]
        return Allocation(region, nbytes, allocation.root, start)

    def write_async(self, allocation: Allocation, array: Array) -> Pending:
        """As Device.write_async; already done when it returns."""
        check_array(allocation, array)
        allocation.handle[: array.nbytes] = array.reshape(-1).view(np.uint8)
        return Pending()

    def staging(self, shape: tuple[int, ...], kind: Any) -> Array:
        """As Device.staging: plain memory."""
        return np.empty(shape, kind)

    def read_async(self, allocation: Allocation, array: Array) -> Pending:
        """As Device.read_async; already done when it returns."""
        check_array(allocation, array, filled=True)
        array.reshape(-1).view(np.uint8)[:] = allocation.handle[: array.nbytes]
        return Pending()

    def copy(self, source: Allocation, target: Allocation) -> None:
        """As Device.copy."""
        check_fits(target, source.nbytes)
        target.handle[: source.nbytes] = source.handle

    def finish(self) -> None:
        """Nothing is ever queued here."""

    def marker(self) -> Pending:
        """Already done."""
        return Pending()


NUMPY_FORMS: dict[str, tuple[Form, Lanes]] = {
    "numpy": ("nodes", "one"),
    "numpy:procedure": ("procedure", "one"),
    "numpy:uops": ("uops", "one"),
    "numpy:uops-group": ("uops", "group"),
}


def numpy_info(spec: str = "numpy") -> DeviceInfo:
    """The NumPy interpreter described as a device; it is always there."""
    return DeviceInfo(
        spec=spec,
        platform="NumPy",
        name=f"interpreter{spec.removeprefix('numpy').replace(':', ' of ')}",
        kind="numpy",
        compute_units=os.cpu_count() or 1,
        memory=host_memory(),
        local_memory=0,
        driver=np.__version__,
        version=np.__version__,
    )


def host_memory() -> int:
    """Bytes of memory in this machine, 0 if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on this system
        return 0
