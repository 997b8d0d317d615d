"""What all kinds of device have in common.

A device allocates memory, copies from and to it, launches kernels whose arguments stay set, and
describes itself. Nothing here needs OpenCL.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Literal

import numpy as np

ALIGN = 128  # bytes; offsets of slices are multiples of it
Array = np.ndarray[Any, Any]
Kind = Literal["gpu", "cpu", "numpy", "simulator", "other"]
Form = Literal["nodes", "procedure", "uops"]  # the form of a program that NumPy interprets


@dataclass(frozen=True)
class DeviceInfo:
    """The description of a device; sizes in bytes."""

    spec: str  # what open_device takes: "0:0", or "numpy"
    platform: str
    name: str
    kind: Kind
    compute_units: int
    memory: int
    local_memory: int
    driver: str
    version: str
    compiled_for: str = ""  # the processor's name that PoCL compiles for
    clock: int = 0  # MHz, the maximum of an NVIDIA GPU; 0 for other devices

    def describe(self) -> str:
        """A short description for messages, such as ``PoCL: AMD EPYC, 2 cores``."""
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
    # Reentrant, as the garbage collector may free an allocation while this thread holds it.
    _lock: Any = field(default_factory=RLock, repr=False, compare=False)

    def take(self, nbytes: int) -> None:
        with self._lock:
            self.live += 1
            self.live_bytes += nbytes

    def free(self, nbytes: int) -> None:
        with self._lock:
            self.live -= 1
            self.live_bytes -= nbytes
            self.freed += 1

    def summary(self) -> str:
        return f"{self.live} allocations of {self.live_bytes:,} bytes in use, {self.freed} freed"


@dataclass(frozen=True)
class FreeMemory:
    """Bytes of a device that can still be allocated: in total, and in one allocation."""

    total: int
    at_once: int


@dataclass(eq=False, slots=True, weakref_slot=True)
class Allocation:
    """Bytes on a device, freed when Python drops the last reference to them."""

    handle: Any  # a cl.Buffer, or an ndarray of uint8 on the NumPy device
    nbytes: int
    _root: Allocation | None = None
    offset: int = 0  # bytes into root

    @property
    def root(self) -> Allocation:
        """What this is a slice of, or itself. (A reference to itself would delay freeing it.)"""
        return self if self._root is None else self._root


def counted(handle: Any, nbytes: int, usage: Usage) -> Allocation:
    """A new Allocation, counted in `usage` as long as it lives."""
    allocation = Allocation(handle, nbytes)
    usage.take(nbytes)
    weakref.finalize(allocation, usage.free, nbytes).atexit = False
    return allocation


class Pending:
    """A transfer or a point in the queue that the host may wait for. This base class is done."""

    __slots__ = ()

    def done(self) -> bool:
        """Whether it is complete. Raises DeviceError if the device failed before it."""
        return True

    def wait(self) -> None:
        """Block until it is complete."""


class HostCopies:
    """Blocking copies between the host and a device, made of the asynchronous ones."""

    compiling = 0.0  # seconds of processor time spent compiling kernels so far
    lowering = 0.0  # the same for lowering graphs to source code

    def write_async(self, allocation: Allocation, array: Array) -> Pending:
        """As write(), after all queued work; `array` must not change until the Pending is done."""
        raise NotImplementedError

    def read_async(self, allocation: Allocation, array: Array) -> Pending:
        """As read(), but `array` holds the data only once the Pending is done."""
        raise NotImplementedError

    def write(self, allocation: Allocation, array: Array) -> None:
        """Copy a host array to the start of `allocation`; returns when it has been read."""
        self.write_async(allocation, np.ascontiguousarray(array)).wait()

    def read(self, allocation: Allocation, array: Array) -> None:
        """Fill a contiguous host array from the start of `allocation`, after all queued work."""
        self.read_async(allocation, array).wait()


# Objects of a device's queue, which hold OpenCL's own

# A context around a use of the queue, by the name of what is done.
Guard = Callable[[str], AbstractContextManager[None]]


@dataclass(eq=False, slots=True)
class Event(Pending):
    """A command in a device's queue."""

    _event: Any
    _queued: Guard
    _kept: object = None  # the host array that the driver still reads or writes

    def done(self) -> bool:
        with self._queued("waiting for the device"):
            if int(self._event.command_execution_status) > 0:
                return False
            self._event.wait()  # raises an error if the command failed
        return True

    def wait(self) -> None:
        with self._queued("waiting for the device"):
            self._event.wait()


@dataclass(frozen=True)
class KernelHandle:
    """One kernel of a built program; bind() makes launches of it."""

    name: str
    program: Any = field(repr=False)
    kernel: Any = field(repr=False, compare=False)  # for queries, and for the first launch
    # Further kernel objects that no launch uses.
    free: list[Any] = field(default_factory=list, repr=False, compare=False)


@dataclass(eq=False, slots=True)
class Launch:
    """A kernel with its arguments, global and local size, to be enqueued many times."""

    handle: KernelHandle
    kernel: Any
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    kept: list[object]  # its arguments: OpenCL does not retain the buffers among them
    compiled: bool = False  # set once its machine code is known to exist


# Checks of accesses to an Allocation


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


def check_array(allocation: Allocation, array: Array, filled: bool = False) -> None:
    """Raise ValueError for a host array that cannot be copied directly.

    `filled` says that the copy is from the device into the array.
    """
    check_fits(allocation, array.nbytes)
    if filled and not (array.flags.c_contiguous and array.flags.writeable):
        raise ValueError("only a contiguous, writeable array can be read into")
    if not array.flags.c_contiguous:
        raise ValueError("only a contiguous array can be written without waiting")
