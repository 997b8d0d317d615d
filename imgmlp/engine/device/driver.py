"""pyopencl, and what all devices of a process share: contexts, and how its errors are reported.

This is the only module that imports pyopencl. If that fails, `cl` is None and `import_failure` says
why; the NumPy device works all the same.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from typing import Any

from imgmlp.engine.device import driver_errors
from imgmlp.engine.device.base import DeviceInfo
from imgmlp.engine.device.pocl import PLATFORM

# pyopencl's own cache of generated call wrappers; this module never calls through them.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")

try:
    import pyopencl as _pyopencl

    if _pyopencl.__file__ is None:  # as pip may leave it when it removes the package
        raise ImportError("its folder is empty")
except Exception as _error:  # not there, or broken in a way of its own: NumPy works all the same
    cl: Any = None
    import_failure: str | None = " ".join(str(_error).split()) or type(_error).__name__
else:
    cl = _pyopencl
    import_failure = None

# Name of a platform. Its driver keeps what it compiles on disk, and (580.159) crashes when parts of
# an allocation are released that kernels have used and that overlap without being the same.
NVIDIA = "NVIDIA CUDA"
MIN_MATRIX_CAPABILITY = 8  # NVIDIA's compute capability whose matrix units product_matrix.cl uses


def shared_context(handle: Any, info: DeviceInfo) -> Any:
    """The context that all Devices of one processor or card share in this process.

    PoCL's contexts are kept for good: with the last one the driver drops its library of functions
    and has to read it again for the next program, which takes 0.4 s on Zen 4. Others end with their
    last Device, because they occupy memory of the card (NVIDIA's half a gigabyte).
    """
    context = _contexts.get(handle.int_ptr)
    if context is None:
        context = _contexts[handle.int_ptr] = cl.Context([handle])
        if info.platform == PLATFORM:
            _permanent_contexts.append(context)
    return context


# By the address of the cl_device_id, without those of which a queue has failed.
_contexts: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_permanent_contexts: list[Any] = []


def forget_context(handle: Any) -> None:
    """Have the next Device of this processor or card get a new context."""
    _contexts.pop(handle.int_ptr, None)


_opened_by: set[int] = set()  # ids of this process and those it was forked from, if they did


def note_opening_process() -> None:
    """Remember that this process has opened a device. Raises DeviceError as `check_not_forked`."""
    check_not_forked()
    _opened_by.add(os.getpid())


def check_not_forked() -> None:
    """Raise DeviceError in a process that was forked from one that had opened a device.

    The driver's threads do not exist in the fork, so that any use would wait for ever.
    """
    if _opened_by and os.getpid() not in _opened_by:
        raise driver_errors.forked()


def has_matrix_units(handle: Any) -> bool:
    """Whether a handle is that of a GPU whose matrix units kernels/product_matrix.cl uses."""
    try:
        major = handle.get_info(cl.device_info.COMPUTE_CAPABILITY_MAJOR_NV)
    except (cl.Error, AttributeError):  # a device of another vendor
        return False
    return int(major) >= MIN_MATRIX_CAPABILITY


@contextlib.contextmanager
def running(what: str) -> Iterator[None]:
    """Translate pyopencl's errors to DeviceError or OutOfMemoryError; `what` is being done."""
    try:
        yield
    except cl.Error as error:
        raise driver_errors.failure(what, status(error), is_memory_error(error)) from error


def is_memory_error(error: Any) -> bool:
    return isinstance(error, cl.MemoryError) or "OUT_OF_RESOURCES" in str(error)


def status(error: Any) -> str:
    """The first line of an OpenCL error, which has its status code."""
    return str(error).strip().splitlines()[0]
