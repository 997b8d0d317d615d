"""OpenCL devices: memory, kernels and an in-order queue, with errors a user can act on.

This is the only module that imports pyopencl. It knows nothing of tensors, graphs or networks:
it is given OpenCL C as text, sizes in bytes and preset arguments, and it launches them at the
lowest cost that Python allows.

PoCL, the CPU driver, compiles a kernel twice: ``clBuildProgram`` makes LLVM bitcode, and the
first launch of each (kernel, local size, small or large grid) makes machine code on the driver's
own thread, where a failure ends the process. Both steps write one cache directory that all
processes share, so both happen here under one file lock.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from imgmlp.errors import DeviceError, OutOfMemoryError

# pyopencl's own cache of generated call wrappers; this module never calls through them.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")

try:
    import platformdirs
    import pyopencl as _pyopencl
except ImportError as _error:  # no pyopencl, or no libOpenCL that it could load
    cl: Any = None
    _import_failure: str | None = str(_error)
else:
    cl = _pyopencl
    _import_failure = None

try:
    import fcntl as _fcntl
except ImportError:  # Windows, where PoCL has no wheel and other drivers guard their own caches
    fcntl: Any = None
else:
    fcntl = _fcntl

INSTALL_HINT = (
    "install a driver for your GPU, or PoCL for the processor with `pip install 'imgmlp[pocl]'`; "
    "`--device numpy` works without either"
)
LOCK_TIMEOUT = 120.0  # seconds; the longest cold compilation seen took under 10
STALE_AFTER = 3600.0  # seconds after which an empty file that PoCL left behind is swept away
LOG_LINES = 12  # of a compiler's log that are shown

Kind = Literal["gpu", "cpu", "numpy", "other"]


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

    def describe(self) -> str:
        """A short line for people, such as ``PoCL: AMD EPYC, 2 cores``."""
        noun = "compute unit" if self.kind in ("gpu", "other") else "core"
        units = f"{self.compute_units} {noun}{'' if self.compute_units == 1 else 's'}"
        maker = {"Portable Computing Language": "PoCL", "NVIDIA CUDA": "NVIDIA"}.get(
            self.platform, self.platform
        )
        name = self.name.removeprefix("pthread-").removeprefix("cpu-").strip()
        return f"{name}, {units}" if name.startswith(maker) else f"{maker}: {name}, {units}"


class Allocation:
    """Bytes on a device, freed when Python drops the last reference to them."""

    __slots__ = ("handle", "nbytes", "offset", "root")

    def __init__(self, handle: Any, nbytes: int, root: Allocation | None = None, offset: int = 0):
        self.handle = handle  # a cl.Buffer, or an ndarray of uint8 on the NumPy device
        self.nbytes = nbytes
        self.offset = offset  # bytes into root
        self.root = self if root is None else root


class Pending:
    """A transfer or a point in the queue that the host does not wait for yet."""

    __slots__ = ("_event", "_kept")

    def __init__(self, event: Any = None, kept: object = None):
        self._event = event
        self._kept = kept  # the host array that the driver still writes to

    def done(self) -> bool:
        """Whether it has happened. Raises DeviceError if the device failed before it."""
        if self._event is None:
            return True
        with _running("reading an event"):
            status = int(self._event.command_execution_status)
        if status < 0:
            raise DeviceError(
                f"the device stopped with OpenCL status {status}", hint="run the command again"
            )
        return status == 0

    def wait(self) -> None:
        """Block until it has happened."""
        if self._event is not None:
            with _running("waiting for an event"):
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


class Device:
    """One OpenCL device with an in-order queue: what is enqueued runs in that order."""

    def __init__(self, handle: Any, info: DeviceInfo):
        self.info = info
        self.lanes: Literal["one", "group"] = "group" if info.kind == "gpu" else "one"
        self.align: int = max(int(handle.mem_base_addr_align) // 8, 128)  # bytes
        self.max_allocation = int(handle.max_mem_alloc_size)  # bytes
        self._handle = handle
        self._compiles_late = info.platform == "Portable Computing Language"
        self._programs: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._compiled: set[tuple[object, ...]] = set()
        with _running("opening the device"):
            self._context = cl.Context([handle])
            self._queue = cl.CommandQueue(self._context)
        self._timing_queue: Any = None

    # Memory

    def alloc(self, nbytes: int) -> Allocation:
        """Reserve `nbytes` bytes of undefined content. Raises OutOfMemoryError."""
        if nbytes > self.max_allocation:
            raise self._out_of_memory(nbytes)
        try:
            flags = cl.mem_flags.READ_WRITE
            buffer = cl.Buffer(self._context, flags, size=max(nbytes, self.align))
        except cl.Error as error:
            if _is_memory(error):
                raise self._out_of_memory(nbytes) from error
            raise _failure("allocating memory", error) from error
        return Allocation(buffer, nbytes)

    def slice(self, allocation: Allocation, offset: int, nbytes: int) -> Allocation:
        """A view of `nbytes` bytes from `offset`, which must be a multiple of `align`."""
        _check_slice(allocation, offset, nbytes, self.align)
        start = allocation.offset + offset
        root = allocation.root
        with _running("slicing an allocation"):
            region = root.handle.get_sub_region(start, max(nbytes, 1))
        return Allocation(region, nbytes, root, start)

    def write(self, allocation: Allocation, array: np.ndarray[Any, Any]) -> None:
        """Copy a host array to the start of `allocation`; returns when it has been read."""
        data = np.ascontiguousarray(array)
        _check_fits(allocation, data.nbytes)
        if data.nbytes:
            with _running("writing to the device"):
                cl.enqueue_copy(self._queue, allocation.handle, data, is_blocking=True)

    def read(self, allocation: Allocation, array: np.ndarray[Any, Any]) -> None:
        """Fill a contiguous host array from the start of `allocation`, after all queued work."""
        _check_target(allocation, array)
        if array.nbytes:
            with _running("reading from the device"):
                cl.enqueue_copy(self._queue, array, allocation.handle, is_blocking=True)

    def read_async(self, allocation: Allocation, array: np.ndarray[Any, Any]) -> Pending:
        """As read(), but `array` holds the data only once the Pending is done."""
        _check_target(allocation, array)
        if not array.nbytes:
            return Pending()
        with _running("reading from the device"):
            event = cl.enqueue_copy(self._queue, array, allocation.handle, is_blocking=False)
            self._queue.flush()
        return Pending(event, array)

    def copy(self, source: Allocation, target: Allocation) -> None:
        """Enqueue a copy of all of `source` to the start of `target`; the two do not overlap."""
        _check_fits(target, source.nbytes)
        if source.nbytes:
            with _running("copying on the device"):
                cl.enqueue_copy(self._queue, target.handle, source.handle, byte_count=source.nbytes)

    # Kernels

    def build(
        self, source: str, names: Sequence[str], options: Sequence[str] = ()
    ) -> dict[str, KernelHandle]:
        """Compile OpenCL C, once for each source and options; the driver keeps it on disk.

        Raises DeviceError with the compiler's log and the path of the saved source in its hint.
        """
        key = (source, tuple(options))
        if key not in self._programs:
            with self._cache_lock():
                self._programs[key] = self._compile(source, options)
        program = self._programs[key]
        for name in names:
            self._kernel(program, name)
        return {name: KernelHandle(name, program) for name in names}

    def bind(
        self,
        kernel: KernelHandle,
        args: Sequence[Allocation | np.generic],
        global_size: tuple[int, ...],
        local_size: tuple[int, ...] | None,
    ) -> Launch:
        """Set the arguments, allocations and NumPy scalars, on a kernel object of its own.

        Give `local_size`: without it PoCL compiles anew for every global size.
        """
        own = self._kernel(kernel.program, kernel.name)
        if own.num_args != len(args):
            raise DeviceError(
                f"kernel {kernel.name} takes {own.num_args} arguments, {len(args)} were given",
                hint="this is a fault in imgmlp; please report it",
            )
        with _running(f"setting the arguments of {kernel.name}"):
            own.set_args(*(a.handle if isinstance(a, Allocation) else a for a in args))
        return Launch(kernel, own, global_size, local_size, tuple(args))

    def launch_all(self, launches: Sequence[Launch]) -> None:
        """Enqueue launches in order and return at once."""
        enqueue, queue = cl.enqueue_nd_range_kernel, self._queue
        name = ""
        try:
            for launch in launches:
                name = launch.name
                if launch.compiled:
                    enqueue(queue, launch.kernel, launch.global_size, launch.local_size)
                else:
                    self._launch_first(launch, queue)
        except cl.Error as error:
            raise _failure(f"launching kernel {name}", error) from error

    def time_launches(self, launches: Sequence[Launch]) -> list[float]:
        """Run launches one by one and return the device's own time of each, in microseconds."""
        self.finish()
        if self._timing_queue is None:
            flags = cl.command_queue_properties.PROFILING_ENABLE
            self._timing_queue = cl.CommandQueue(self._context, properties=flags)
        times: list[float] = []
        for launch in launches:
            with _running(f"timing kernel {launch.name}"):
                event = self._launch_first(launch, self._timing_queue)
                event.wait()
                times.append((event.profile.end - event.profile.start) / 1000)
        return times

    def _launch_first(self, launch: Launch, queue: Any) -> Any:
        """Launch and, where the driver compiles at the first launch, wait until it has."""
        variant = (launch.program, launch.name, launch.global_size, launch.local_size)
        late = self._compiles_late and variant not in self._compiled
        with self._cache_lock() if late else contextlib.nullcontext():
            event = cl.enqueue_nd_range_kernel(
                queue, launch.kernel, launch.global_size, launch.local_size
            )
            if late:
                queue.flush()
                # PoCL reports a launch as running once its machine code is loaded.
                while event.command_execution_status > cl.command_execution_status.RUNNING:
                    time.sleep(1e-4)
        self._compiled.add(variant)
        launch.compiled = True
        return event

    # The queue

    def flush(self) -> None:
        """Hand queued work to the device without waiting."""
        with _running("flushing the queue"):
            self._queue.flush()

    def finish(self) -> None:
        """Wait until all queued work is done."""
        with _running("finishing the queued work"):
            self._queue.finish()

    def marker(self) -> Pending:
        """A point in the queue that is done once everything before it is."""
        with _running("marking the queue"):
            event = cl.enqueue_marker(self._queue)
            self._queue.flush()
        return Pending(event)

    # What is private

    def _compile(self, source: str, options: Sequence[str]) -> Any:
        for attempt in (1, 2):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", cl.CompilerWarning)
                    return cl.Program(self._context, source).build(options=["-w", *options])
            except cl.Error as error:
                # Only a broken cache mends by itself; a fault of the source comes back.
                if attempt == 2:
                    raise _build_failure(source, self.info, error) from error
        raise AssertionError("unreachable")

    def _kernel(self, program: Any, name: str) -> Any:
        try:
            kernel = cl.Kernel(program, name)
            _ = kernel.num_args  # NVIDIA's driver notices an unknown name only here
        except cl.Error as error:
            raise DeviceError(
                f"the built program has no kernel {name}: {error}",
                hint="this is a fault in imgmlp; please report it",
            ) from error
        return kernel

    def _cache_lock(self) -> contextlib.AbstractContextManager[None]:
        if not self._compiles_late:  # other drivers guard their caches themselves
            return contextlib.nullcontext()
        self._queue.finish()  # so that nobody waits for our earlier work under the lock
        return _locked(Path(os.environ["POCL_CACHE_DIR"]) / "imgmlp.lock")

    def _out_of_memory(self, nbytes: int) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"{nbytes:,} bytes do not fit on {self.info.describe()}, which has "
            f"{self.info.memory:,} bytes, at most {self.max_allocation:,} at once",
            hint="use a smaller picture or batch, or another device",
        )


class NumpyDevice:
    """Host memory behind the same calls; programs on it are interpreted, never compiled."""

    align = 128  # bytes
    lanes: Literal["one", "group"] = "one"

    def __init__(self) -> None:
        self.info = numpy_info()

    def alloc(self, nbytes: int) -> Allocation:
        """As Device.alloc; the bytes are zero."""
        try:
            return Allocation(np.zeros(nbytes, np.uint8), nbytes)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"{nbytes:,} bytes do not fit in this machine's memory",
                hint="use a smaller picture or batch",
            ) from error

    def slice(self, allocation: Allocation, offset: int, nbytes: int) -> Allocation:
        """As Device.slice."""
        _check_slice(allocation, offset, nbytes, self.align)
        start = allocation.offset + offset
        region = allocation.root.handle[start : start + nbytes]
        return Allocation(region, nbytes, allocation.root, start)

    def write(self, allocation: Allocation, array: np.ndarray[Any, Any]) -> None:
        """As Device.write."""
        _check_fits(allocation, array.nbytes)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        allocation.handle[: data.size] = data

    def read(self, allocation: Allocation, array: np.ndarray[Any, Any]) -> None:
        """As Device.read."""
        _check_target(allocation, array)
        array.reshape(-1).view(np.uint8)[:] = allocation.handle[: array.nbytes]

    def read_async(self, allocation: Allocation, array: np.ndarray[Any, Any]) -> Pending:
        """As Device.read_async; already done when it returns."""
        self.read(allocation, array)
        return Pending()

    def copy(self, source: Allocation, target: Allocation) -> None:
        """As Device.copy."""
        _check_fits(target, source.nbytes)
        target.handle[: source.nbytes] = source.handle

    def flush(self) -> None:
        """Nothing is ever queued here."""

    def finish(self) -> None:
        """Nothing is ever queued here."""

    def marker(self) -> Pending:
        """Already done."""
        return Pending()


# Finding and opening devices


AnyDevice = Device | NumpyDevice


def numpy_info() -> DeviceInfo:
    """The NumPy interpreter described as a device; it is always there."""
    return DeviceInfo(
        spec="numpy",
        platform="NumPy",
        name="interpreter",
        kind="numpy",
        compute_units=os.cpu_count() or 1,
        memory=_host_memory(),
        local_memory=0,
        driver=np.__version__,
        version=np.__version__,
    )


def list_devices() -> list[DeviceInfo]:
    """All OpenCL devices, then the NumPy interpreter. Never raises for want of a driver."""
    return [*(info for _, info in _find()[0]), numpy_info()]


def diagnose() -> str | None:
    """Why there is no OpenCL device, or None if there is one."""
    return _find()[1]


def open_device(spec: str = "auto") -> AnyDevice:
    """Open a device by ``auto``, ``gpu``, ``cpu``, ``numpy`` or ``platform:device`` (``0:1``).

    ``auto`` takes the first GPU, else the first processor with an OpenCL driver; the NumPy
    interpreter, a hundred times slower, is taken only by name. Raises DeviceError.
    """
    wanted = spec.strip().lower()
    if wanted == "numpy":
        return NumpyDevice()
    found, reason = _find()
    order = {"auto": ["gpu", "cpu", "other"], "gpu": ["gpu"], "cpu": ["cpu"]}.get(wanted)
    if order is None:
        matches = [pair for pair in found if pair[1].spec == wanted]
    else:
        matches = [pair for kind in order for pair in found if pair[1].kind == kind]
    if matches:
        return Device(*matches[0])
    if not found:
        raise DeviceError(f"no OpenCL device: {reason}", hint=INSTALL_HINT)
    there = "; ".join(f"{info.spec} is {info.describe()}" for _, info in found)
    raise DeviceError(
        f"there is no device {spec!r}",
        hint=f"{there}; auto, gpu, cpu and numpy are understood too",
    )


def _find() -> tuple[list[tuple[Any, DeviceInfo]], str | None]:
    """OpenCL's devices with their descriptions, or why there are none."""
    if cl is None:
        return [], f"pyopencl cannot be loaded ({_import_failure})"
    _choose_cache()
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        return [], f"the OpenCL loader finds no driver ({_status(error)})"
    found: list[tuple[Any, DeviceInfo]] = []
    refusals: list[str] = []
    for p, platform in enumerate(platforms):
        try:
            handles = platform.get_devices()
            found += [(h, _inspect(f"{p}:{d}", platform, h)) for d, h in enumerate(handles)]
        except cl.Error as error:
            refusals.append(f"{platform.name.strip()}: {_status(error)}")
    return found, None if found else "; ".join(refusals) or "no driver offers a device"


def _inspect(spec: str, platform: Any, handle: Any) -> DeviceInfo:
    kinds: dict[int, Kind] = {cl.device_type.GPU: "gpu", cl.device_type.CPU: "cpu"}
    return DeviceInfo(
        spec=spec,
        platform=platform.name.strip(),
        name=handle.name.strip(),
        kind=next((kind for bit, kind in kinds.items() if handle.type & bit), "other"),
        compute_units=int(handle.max_compute_units),
        memory=int(handle.global_mem_size),
        local_memory=int(handle.local_mem_size),
        driver=handle.driver_version.strip(),
        version=handle.version.strip(),
    )


def _host_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on this system
        return 0


# PoCL's cache directory


def _choose_cache() -> None:
    """Point PoCL at a directory that can be written; it reads the variable when it starts."""
    chosen = os.environ.get("POCL_CACHE_DIR")
    for path in (Path(chosen) if chosen else None, _user_cache()):
        if path is not None and _writable(path):
            os.environ["POCL_CACHE_DIR"] = str(path)
            _sweep(path)
            return
    private = tempfile.mkdtemp(prefix="imgmlp-pocl-")
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    os.environ["POCL_CACHE_DIR"] = private


def _user_cache() -> Path | None:
    try:
        home = Path.home()
    except RuntimeError:
        return None
    path = Path(platformdirs.user_cache_dir("imgmlp", appauthor=False)) / "pocl"
    # A home that does not exist is not ours to make.
    return path if home.is_dir() or path.parents[1].is_dir() else None


def _writable(path: Path) -> bool:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False


def _sweep(path: Path) -> None:
    """Remove the empty files of which PoCL leaves one for each process."""
    with contextlib.suppress(OSError):
        for left in path.glob("tempfile_*"):
            state = left.stat()
            if state.st_size == 0 and state.st_mtime < time.time() - STALE_AFTER:
                left.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, or go on without it where that cannot be had."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            file = stack.enter_context(path.open("ab"))
            deadline = time.monotonic() + LOCK_TIMEOUT
            while fcntl is not None and time.monotonic() < deadline:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.01)
        yield


# Errors


@contextlib.contextmanager
def _running(what: str) -> Iterator[None]:
    try:
        yield
    except cl.Error as error:
        raise _failure(what, error) from error


def _failure(what: str, error: Any) -> DeviceError | OutOfMemoryError:
    if _is_memory(error):
        return OutOfMemoryError(
            f"the device ran out of memory while {what} ({_status(error)})",
            hint="use a smaller picture or batch, or another device",
        )
    return DeviceError(
        f"{what} failed: {_status(error)}",
        hint="run the command again; `imgmlp devices` shows what else there is",
    )


def _is_memory(error: Any) -> bool:
    return isinstance(error, cl.MemoryError) or "OUT_OF_RESOURCES" in str(error)


def _status(error: Any) -> str:
    """OpenCL's name for what happened, as one line."""
    return str(error).strip().splitlines()[0]


def _build_failure(source: str, info: DeviceInfo, error: Any) -> DeviceError:
    log = [line for line in str(error).splitlines() if line.strip()]
    first = next((n for n, line in enumerate(log) if "error:" in line), 0)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="imgmlp-", suffix=".cl", delete=False
    ) as file:
        file.write(source)
    return DeviceError(
        f"a kernel does not compile on {info.describe()}",
        hint="\n".join([f"its source is in {file.name}", *log[first : first + LOG_LINES]]),
    )


def _check_slice(allocation: Allocation, offset: int, nbytes: int, align: int) -> None:
    if offset % align:
        raise ValueError(f"offset {offset} is not a multiple of {align} bytes")
    if offset < 0 or nbytes < 0 or offset + nbytes > allocation.nbytes:
        raise ValueError(
            f"bytes {offset} to {offset + nbytes} are outside of an allocation "
            f"of {allocation.nbytes} bytes"
        )


def _check_fits(allocation: Allocation, nbytes: int) -> None:
    if nbytes > allocation.nbytes:
        raise ValueError(f"{nbytes} bytes do not fit in {allocation.nbytes}")


def _check_target(allocation: Allocation, array: np.ndarray[Any, Any]) -> None:
    _check_fits(allocation, array.nbytes)
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError("only a contiguous, writeable array can be read into")
