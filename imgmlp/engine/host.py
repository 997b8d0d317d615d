"""What every device is made of, and the device that is host memory behind the same calls.

A device hands out Allocations, reads and writes them, and describes itself. Nothing here
needs OpenCL; programs on NumPy's device are interpreted, never compiled.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from imgmlp.errors import OutOfMemoryError

ALIGN = 128  # bytes, the least that slices are aligned to
Kind = Literal["gpu", "cpu", "numpy", "simulator", "other"]
Form = Literal["nodes", "procedure", "uops"]  # of a program: what NumPy runs
Lanes = Literal["one", "group"]


@dataclass(frozen=True)
class DeviceInfo:
    """What a device says of itself; sizes in bytes."""

    spec: str  # what open_device takes: "0:0", or "numpy"
    platform: str
    name: str
    kind: Kind
    compute_units: int
    memory: int
    local_memory: int
    driver: str
    version: str
    target: str = ""  # what PoCL's compiler takes the processor for

    def describe(self) -> str:
        """A short line for people, such as ``PoCL: AMD EPYC, 2 cores``."""
        noun = "core" if self.kind in ("cpu", "numpy") else "compute unit"
        units = f"{self.compute_units} {noun}{'' if self.compute_units == 1 else 's'}"
        maker = {"Portable Computing Language": "PoCL", "NVIDIA CUDA": "NVIDIA"}.get(
            self.platform, self.platform
        )
        name = self.name.removeprefix("pthread-").removeprefix("cpu-").strip()
        return f"{name}, {units}" if name.startswith(maker) else f"{maker}: {name}, {units}"


@dataclass
class Usage:
    """A device's allocations: how many are in use and their bytes, and how many were freed."""

    live: int = 0
    live_bytes: int = 0
    freed: int = 0

    def take(self, nbytes: int) -> None:
        self.live += 1
        self.live_bytes += nbytes

    def free(self, nbytes: int) -> None:
        self.live -= 1
        self.live_bytes -= nbytes
        self.freed += 1

    def summary(self) -> str:
        return f"{self.live} allocations of {self.live_bytes:,} bytes in use, {self.freed} freed"


@dataclass(frozen=True)
class Room:
    """Bytes of a device that can still be had: in all, and in one allocation."""

    total: int
    at_once: int


class Allocation:
    """Bytes on a device, freed when Python drops the last reference to them."""

    __slots__ = ("__weakref__", "_root", "handle", "nbytes", "offset")

    def __init__(self, handle: Any, nbytes: int, root: Allocation | None = None, offset: int = 0):
        self.handle = handle  # a cl.Buffer, or an ndarray of uint8 on the NumPy device
        self.nbytes = nbytes
        self.offset = offset  # bytes into root
        self._root = root

    @property
    def root(self) -> Allocation:
        """What this is a slice of, or itself: a cycle would keep the memory for a while."""
        return self if self._root is None else self._root


def counted(handle: Any, nbytes: int, usage: Usage) -> Allocation:
    """An Allocation of its own, counted for as long as it lives."""
    found = Allocation(handle, nbytes)
    usage.take(nbytes)
    weakref.finalize(found, usage.free, nbytes).atexit = False
    return found


class Pending:
    """A transfer or a point in the queue that the host does not wait for yet; this one is done."""

    __slots__ = ()

    def done(self) -> bool:
        """Whether it has happened. Raises DeviceError if the device failed before it."""
        return True

    def wait(self) -> None:
        """Block until it has happened."""


class NumpyDevice:
    """Host memory behind the same calls; programs on it are interpreted, never compiled.

    `form` says which form of them: the Nodes, or what a device with these lanes would be
    given, kernel by kernel or instruction by instruction.
    """

    align: int = ALIGN
    can_slice: bool = True
    has_matrix_units: bool = False
    keeps_groups: bool = False
    vector_width: int = 8
    lost = False

    def __init__(self, spec: str = "numpy") -> None:
        self.form, self.lanes = NUMPY_FORMS[spec]
        self.info = numpy_info(spec)
        self.usage = Usage()

    @property
    def joins_kernels(self) -> bool:
        """As Device.joins_kernels."""
        return True

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

    def room(self) -> Room:
        """As Device.room: what this machine has and this device has not given yet."""
        left = max(0, self.info.memory - self.usage.live_bytes)
        return Room(left, left)

    def slice(self, allocation: Allocation, offset: int, nbytes: int) -> Allocation:
        """As Device.slice."""
        check_slice(allocation, offset, nbytes, self.align)
        start = allocation.offset + offset
        region = allocation.root.handle[start : start + nbytes]
        return Allocation(region, nbytes, allocation.root, start)

    def write(self, allocation: Allocation, array: np.ndarray[Any, Any]) -> None:
        """As Device.write."""
        check_fits(allocation, array.nbytes)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        allocation.handle[: data.size] = data

    def write_async(self, allocation: Allocation, array: np.ndarray[Any, Any]) -> Pending:
        """As Device.write_async; already done when it returns."""
        self.write(allocation, array)
        return Pending()

    def staging(self, shape: tuple[int, ...], kind: Any) -> np.ndarray[Any, Any]:
        """As Device.staging: plain memory."""
        return np.empty(shape, kind)

    def read(self, allocation: Allocation, array: np.ndarray[Any, Any]) -> None:
        """As Device.read."""
        check_target(allocation, array)
        array.reshape(-1).view(np.uint8)[:] = allocation.handle[: array.nbytes]

    def read_async(self, allocation: Allocation, array: np.ndarray[Any, Any]) -> Pending:
        """As Device.read_async; already done when it returns."""
        self.read(allocation, array)
        return Pending()

    def copy(self, source: Allocation, target: Allocation) -> None:
        """As Device.copy."""
        check_fits(target, source.nbytes)
        target.handle[: source.nbytes] = source.handle

    def flush(self) -> None:
        """Nothing is ever queued here."""

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


# What an Allocation is asked for


def check_slice(allocation: Allocation, offset: int, nbytes: int, align: int) -> None:
    if offset % align:
        raise ValueError(f"offset {offset} is not a multiple of {align} bytes")
    if offset < 0 or nbytes < 0 or offset + nbytes > allocation.nbytes:
        raise ValueError(
            f"bytes {offset} to {offset + nbytes} are outside of an allocation "
            f"of {allocation.nbytes} bytes"
        )


def check_fits(allocation: Allocation, nbytes: int) -> None:
    if nbytes > allocation.nbytes:
        raise ValueError(f"{nbytes} bytes do not fit in {allocation.nbytes}")


def check_target(allocation: Allocation, array: np.ndarray[Any, Any]) -> None:
    check_fits(allocation, array.nbytes)
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError("only a contiguous, writeable array can be read into")


def check_source(allocation: Allocation, array: np.ndarray[Any, Any]) -> None:
    check_fits(allocation, array.nbytes)
    if not array.flags.c_contiguous:
        raise ValueError("only a contiguous array can be written without waiting")
