"""OpenCL devices: memory, kernels and an in-order queue, with errors a user can act on.

This is the only module that imports pyopencl. It knows no tensors, graphs or networks: given
OpenCL C, sizes in bytes and preset arguments, it launches at the lowest cost that Python allows.

PoCL, the CPU driver, compiles a kernel twice: ``clBuildProgram`` makes LLVM bitcode, and the
first launch of each (kernel, local size, small or large grid) makes machine code on the driver's
own thread, where a failure ends the process. Both steps write one cache directory that all
processes share, so both happen here under one file lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import linecache
import math
import os
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from importlib import resources
from typing import Any

import numpy as np

from imgmlp.child import cores_here
from imgmlp.engine.device import driver_errors
from imgmlp.engine.device.base import (
    ALIGN,
    Allocation,
    Array,
    DeviceInfo,
    Event,
    FreeMemory,
    HostCopies,
    KernelHandle,
    Launch,
    Pending,
    Usage,
    check_array,
    check_fits,
    check_slice,
    counted,
)
from imgmlp.engine.device.build_beside import NOT_KEPT, Builders
from imgmlp.engine.device.compile_beside import Task, beside, most, wanted
from imgmlp.engine.device.kernel_cache import LOCK, current, has_room, locked, was_removed
from imgmlp.engine.device.pocl import PASSED_OVER, PLATFORM, WHEEL, peak_width, vector_width
from imgmlp.engine.device.spare import Spare
from imgmlp.engine.ir.target import Lanes
from imgmlp.errors import DeviceError, OutOfMemoryError

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

MATRIX_UNITS = 8  # compute capability from which NVIDIA's multiply halves as we ask them to
COARSEST_ALIGN = 1 << 16  # bytes; packing to coarser offsets saves little
# Bytes that are kept of what a GPU's memory is not used for any more, at most: the share is each
# process's, of which several may be on it and cannot ask each other to give theirs back.
SPARE, SPARE_SHARE = 1 << 28, 1 / 64
# Processes that build parts of programs, at most, and bytes of a device's memory that there must be
# for each of more than a few. On 16 cores of a Xeon a latent step was built in 1.2 s with seven, in
# 2.5 with three.
BUILDERS, FEWEST, HELD = 7, 3, 1 << 31
LARGE = 1 << 20  # bytes of an allocation that is used at once, to see that it is there
COLD = 0.05  # seconds that a first launch compiles, at least, where its machine code was not there
WRAPPER = "<generated: 'pyopencl invoker for "  # how pyopencl calls the source of a wrapper
MOST_SOURCES = 200  # files that Python has lines of, before wrappers are forgotten
_BYTE = np.zeros(1, np.uint8)
# Whose driver keeps what it compiles on disk, and (580.159) crashes when parts of an allocation are
# released that kernels have used and that overlap without being the same.
NVIDIA = "NVIDIA CUDA"
# Before the type of an argument that is of local memory, or of memory that a kernel only reads.
LOCAL, CONST = "__local ", "const "


def spare(info: DeviceInfo) -> int:
    """Bytes that a device keeps of what is not used any more."""
    return min(SPARE, int(SPARE_SHARE * info.memory)) if info.kind == "gpu" else 0


class Device(HostCopies):
    """One OpenCL device with an in-order queue: what is enqueued runs in that order."""

    lost: str = ""  # what was being done when its queue failed: it does nothing any more then

    def __init__(self, handle: Any, info: DeviceInfo):
        check_not_forked()
        _opened_by.add(os.getpid())
        self.info = info
        self.lanes: Lanes = "group" if info.kind == "gpu" else "one"
        self.align: int = max(int(handle.mem_base_addr_align) // 8, ALIGN)  # bytes
        self.max_allocation = int(handle.max_mem_alloc_size)  # bytes
        self.has_matrix_units = _has_matrix_units(handle)
        self.max_lanes = int(handle.max_work_group_size)  # work-items of a group
        self._handle = handle
        self.vector_width = vector_width(info.platform, info.compiled_for)  # floats
        self.peak_width = peak_width(info.platform, info.compiled_for)  # floats, of bench alone
        self._compiles_late = info.platform == PLATFORM
        self._passes_over = self._compiles_late and info.driver == WHEEL
        self._programs: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._compiled: set[tuple[object, ...]] = set()
        with _running("opening the device"):
            self._context = _context(handle, info)
            self._queue = cl.CommandQueue(self._context)
        self._builders: Builders | None = None
        self._ending: weakref.finalize[..., Any] | None = None  # of these
        self._timing_queue: Any = None
        self._side_queue: Any = None
        self.usage = Usage()
        self.spare = Spare(spare(info))
        self.can_slice = info.platform != NVIDIA and self._try_to_slice()
        if not self.can_slice:
            self.align = ALIGN

    @property
    def joins_kernels(self) -> bool:
        """Whether a launch may be of several kernels: PoCL 3 mistakes barriers of lanes inside of
        loops and branches."""
        return self.lanes == "one" or not self._compiles_late

    @property
    def keeps_groups(self) -> bool:
        """Whether work-groups may stay for several steps: one may see at once what another one
        stores, which OpenCL does not promise; PoCL's are threads of the host."""
        return self.lanes == "one" and self._compiles_late

    @property
    def has_queues(self) -> bool:
        """Whether launches of two queues run at the same time, so that small ones need not leave
        most of a device idle."""
        return self.lanes == "group"

    @property
    def builds_in_parts(self) -> bool:
        """Whether a program had better be built in parts, as others may build some of them."""
        return self.info.platform == NVIDIA

    # Memory

    def alloc(self, nbytes: int) -> Allocation:
        """Reserve `nbytes` bytes of undefined content. Raises OutOfMemoryError."""
        left = self.info.memory - self.usage.live_bytes
        if nbytes > min(self.max_allocation, left):
            raise driver_errors.does_not_fit(nbytes, self.max_allocation, self.info)
        size = max(nbytes, self.align)
        buffer = self.spare.take(size) or self._buffer(size)
        found = counted(buffer, nbytes, self.usage)
        if self.spare.most:
            weakref.finalize(found, self.spare.give, size, buffer).atexit = False
        return found

    def _buffer(self, size: int) -> Any:
        try:
            buffer = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size=size)
            if size >= LARGE:  # drivers may look for memory only when it is first used
                cl.enqueue_copy(self._queue, buffer, _BYTE, is_blocking=False)
            return buffer
        except cl.Error as error:
            if _is_memory(error):
                if self.spare.clear() or self._dismiss():
                    return self._buffer(size)
                raise driver_errors.does_not_fit(size, self.max_allocation, self.info) from error
            raise driver_errors.failure("allocating memory", status(error), False) from error

    def free_memory(self) -> FreeMemory:
        """What alloc() would still give, found by asking, as others may use the device too.

        Of less than LARGE nothing is known, and of the largest piece seven eighths of it at least.
        """
        held: list[Allocation] = []
        self._dismiss()
        self.spare.clear()
        size = min(self.max_allocation, self.info.memory)
        while size >= LARGE:
            try:
                held.append(self.alloc(size))
            except OutOfMemoryError:
                size -= max(1, size // 8)
        found = FreeMemory(sum(a.nbytes for a in held), max((a.nbytes for a in held), default=0))
        held.clear()
        self.spare.clear()
        return found

    def _try_to_slice(self) -> bool:
        """Whether parts of an allocation can be had, and without wasting most of it."""
        if self.align > COARSEST_ALIGN:
            return False
        with contextlib.suppress(cl.Error):
            whole = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size=2 * self.align)
            whole.get_sub_region(self.align, self.align)
            return True
        return False

    def slice(self, allocation: Allocation, offset: int, nbytes: int) -> Allocation:
        """A view of `nbytes` bytes from `offset`, which must be a multiple of `align`."""
        check_slice(allocation, offset, nbytes, self.align)
        start = allocation.offset + offset
        root = allocation.root
        with _running("slicing an allocation"):
            region = root.handle.get_sub_region(start, max(nbytes, 1))
        return Allocation(region, nbytes, root, start)

    def write_async(self, allocation: Allocation, array: Array) -> Pending:
        return self._transfer("writing to the device", allocation, array)

    def staging(self, shape: tuple[int, ...], kind: Any) -> Array:
        """A host array of undefined content for write_async(), pinned where the driver can."""
        nbytes = math.prod(shape) * np.dtype(kind).itemsize
        if not nbytes:
            return np.empty(shape, kind)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        how = (cl.map_flags.READ | cl.map_flags.WRITE, 0, shape, kind)
        try:
            pinned = cl.Buffer(self._context, flags, size=nbytes)
            return np.asarray(cl.enqueue_map_buffer(self._queue, pinned, *how)[0])
        except cl.Error:
            return np.empty(shape, kind)

    def read_async(self, allocation: Allocation, array: Array) -> Pending:
        return self._transfer("reading from the device", allocation, array, filled=True)

    def _transfer(
        self, what: str, allocation: Allocation, array: Array, filled: bool = False
    ) -> Pending:
        check_array(allocation, array, filled)
        if not array.nbytes:
            return Pending()
        ends = (array, allocation.handle) if filled else (allocation.handle, array)
        with self._queued(what):
            event = cl.enqueue_copy(self._queue, *ends, is_blocking=False)
            self._queue.flush()
        return Event(event, self._queued, array)

    def copy(self, source: Allocation, target: Allocation) -> None:
        """Enqueue a copy of all of `source` to the start of `target`; the two do not overlap."""
        check_fits(target, source.nbytes)
        if source.nbytes:
            with self._queued("copying on the device"):
                cl.enqueue_copy(self._queue, target.handle, source.handle, byte_count=source.nbytes)

    # Kernels

    def build(
        self, source: str, names: Sequence[str], options: Sequence[str] = ()
    ) -> dict[str, KernelHandle]:
        """Compile OpenCL C, once for each source and options; the driver keeps it on disk.

        A source without options that needs more than kernels/declarations.cl declares takes
        longer. Raises DeviceError with the compiler's log and the path of the saved source in its
        hint.
        """
        check_not_forked()
        key = (source, tuple(options))
        if key not in self._programs:
            with self._compiling():
                self._programs[key] = self._compile(source, options)
        program = self._programs[key]
        made = {name: self._kernel(program, name) for name in names}
        return {name: KernelHandle(name, program, one, [one]) for name, one in made.items()}

    def expect_programs(self) -> None:
        """Have other processes get ready that help to build what is new and comes soon."""
        before = self._builders
        count = most(cores_here(), max(FEWEST, min(BUILDERS, self.info.memory // HELD)))
        if not self.builds_in_parts or not count:
            return
        if before is not None and before.working:
            before.expect()
        elif before is None or not before.useless:
            self._builders = Builders(self.info.spec, count)
            if self._ending is not None:
                self._ending.detach()
            self._ending = weakref.finalize(self, self._builders.close)

    def begin_parts(self, parts: Iterable[str]) -> None:
        """Have other processes, if there are any, begin with what build_parts() will be given."""
        if self._builders is not None and self._helped:
            self._builders.offer([part for part in parts if (part, ()) not in self._programs])

    def build_parts(self, parts: Mapping[str, Sequence[str]]) -> dict[str, KernelHandle]:
        """What build() gives, of the named kernels of several sources."""
        new = [source for source in parts if (source, ()) not in self._programs]
        own = partial(self.build, names=())
        if len(new) > 2 and not self._helped:
            began, first = time.perf_counter(), new.pop(0)
            own(first)
            if time.perf_counter() - began > NOT_KEPT:
                self.expect_programs()
        if self._builders is not None and self._helped:
            self.compiling += self._builders.build(new, own)
        found: dict[str, KernelHandle] = {}
        for source, names in parts.items():
            found |= self.build(source, names)
        return found

    @property
    def _helped(self) -> bool:
        """Whether other processes would build some parts."""
        return self._builders is not None and self._builders.working

    def _dismiss(self) -> bool:
        """End these, as they hold some memory; whether there were any."""
        if self._builders is None or not self._helped:
            return False
        self._builders.close()
        return True

    def parameters(self, kernel: KernelHandle) -> list[tuple[str, str]]:
        """Type, after LOCAL or CONST where it is so, and name of each argument; empty where not
        built with -cl-kernel-arg-info."""
        own, told = kernel.kernel, cl.kernel_arg_info
        ask, places = own.get_arg_info, range(own.num_args)
        local, const = cl.kernel_arg_address_qualifier.LOCAL, cl.kernel_arg_type_qualifier.CONST

        def kind(i: int) -> str:
            before = CONST if ask(i, told.TYPE_QUALIFIER) & const else ""
            before = LOCAL if ask(i, told.ADDRESS_QUALIFIER) == local else before
            return before + str(ask(i, told.TYPE_NAME).replace(" ", ""))

        try:
            return [(kind(i), ask(i, told.NAME)) for i in places]
        except cl.Error:
            return [("", "")] * len(places)

    def shortage(self, kernel: KernelHandle, lanes: int) -> str | None:
        """What a kernel needs beyond what there is for a group of so many work-items, if so."""
        own, told = kernel.kernel, cl.kernel_work_group_info
        try:
            local = int(own.get_work_group_info(told.LOCAL_MEM_SIZE, self._handle))
            most = int(own.get_work_group_info(told.WORK_GROUP_SIZE, self._handle))
        except cl.Error:  # nobody knows before it is launched
            return None
        where, there = self.info.describe(), self.info.local_memory
        if local > there:
            return f"{kernel.name} needs {local:,} bytes of local memory; {where} has {there:,}"
        if most < lanes:
            return f"{kernel.name} runs {lanes} work-items; {where} has registers for {most}"
        return None

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
        try:
            own = kernel.free.pop()
        except IndexError:
            own = self._kernel(kernel.program, kernel.name)
        if own.num_args != len(args):
            what = f"kernel {kernel.name} takes {own.num_args} arguments"
            raise driver_errors.fault(f"{what}, {len(args)} were given")
        with _running(f"setting the arguments of {kernel.name}"):
            own.set_args(*(a.handle if isinstance(a, Allocation) else a for a in args))
        return Launch(kernel, own, global_size, local_size, list(args))

    def release(self, launch: Launch) -> None:
        """Have its kernel object bound again, as the launch is done and never enqueued again; a new
        one takes pyopencl 0.4 ms."""
        own, launch.kernel = launch.kernel, None
        assert own is not None, f"{launch.handle.name} is released twice"
        launch.handle.free.append(own)

    def bind_again(self, launch: Launch, number: int, allocation: Allocation) -> None:
        """Set one argument anew, for what is enqueued from now on."""
        with _running(f"setting an argument of {launch.handle.name}"):
            launch.kernel.set_arg(number, allocation.handle)
        launch.kept[number] = allocation

    def launch_all(self, launches: Sequence[Launch]) -> None:
        """Enqueue launches in order and return at once."""
        self._refuse_if_lost()
        self._enqueue(launches, self._queue)

    def launch_beside(self, launches: Sequence[Launch], begin: int, end: int, join: int) -> None:
        """The same, where those from `begin` up to `end` run at the same time as those behind them,
        up to `join`."""
        self._refuse_if_lost()
        if not all(launch.compiled for launch in launches):
            self._enqueue(launches, self._queue)
            return
        if self._side_queue is None:
            self._side_queue = cl.CommandQueue(self._context)
        fork = self._enqueue(launches[:begin], self._queue)
        self._queue.flush()  # as another queue waits for it
        done = self._enqueue(launches[begin:end], self._side_queue, fork)
        self._side_queue.flush()
        self._enqueue(launches[end:join], self._queue)
        self._enqueue(launches[join:], self._queue, done)

    def _enqueue(self, launches: Sequence[Launch], queue: Any, after: Any = None) -> Any:
        """Enqueue launches in order, the first one after an event of another queue; the last
        one's event."""
        enqueue, found = cl.enqueue_nd_range_kernel, None
        wait_for = None if after is None else [after]
        try:
            for number, launch in enumerate(launches):
                if not launch.compiled:
                    return self._enqueue_first(launches[number:], queue)
                sizes = launch.global_size, launch.local_size
                found = enqueue(queue, launch.kernel, *sizes, None, wait_for)
                wait_for = None
        except cl.Error as error:
            raise self._failed(f"launching kernel {launch.handle.name}", error) from error
        return found

    def _enqueue_first(self, launches: Sequence[Launch], queue: Any) -> Any:
        """Enqueue launches of which the first was not compiled; the last one's event. Other
        processes help where compiling takes long."""
        found = None
        with contextlib.ExitStack() as stack:
            helped = not self._compiles_late
            for number, launch in enumerate(launches):
                before = self.compiling
                try:
                    found = self._launch_first(launch, queue)
                except cl.Error as error:
                    raise self._failed(f"launching kernel {launch.handle.name}", error) from error
                if not helped and self.compiling - before > COLD:
                    stack.enter_context(self._compiling_beside(launches[number + 1 :]))
                    helped = True
        return found

    def _compiling_beside(self, launches: Sequence[Launch]) -> AbstractContextManager[Any]:
        """Other processes for launches to come: for the program that has most of the kernels."""
        tasks: dict[Any, dict[KernelHandle, Task]] = {}
        for launch in launches:
            handle = launch.handle
            if (handle, launch.global_size, launch.local_size) not in self._compiled:
                tasks.setdefault(handle.program, {})[handle] = Task.of(launch)
        program = max(tasks, key=lambda each: len(tasks[each]), default=None)
        own = list(tasks.get(program, {}).values())
        built_from = (key for key, built in self._programs.items() if built is program)
        count = wanted(len(own), min(self.info.compute_units, cores_here()))
        return beside(self.info.spec, *next(built_from, ("", ())), own, count)

    def time_launches(self, launches: Sequence[Launch]) -> list[float]:
        """Run launches one by one and return the device's own time of each, in microseconds."""
        self.finish()
        if self._timing_queue is None:
            flags = cl.command_queue_properties.PROFILING_ENABLE
            self._timing_queue = cl.CommandQueue(self._context, properties=flags)
        times: list[float] = []
        for launch in launches:
            with self._queued(f"timing kernel {launch.handle.name}"):
                event = self._launch_first(launch, self._timing_queue)
                event.wait()
                times.append((event.profile.end - event.profile.start) / 1000)
        return times

    def _launch_first(self, launch: Launch, queue: Any) -> Any:
        """Launch and, where the driver compiles at the first launch, wait until it has."""
        variant = (launch.handle, launch.global_size, launch.local_size)
        late = self._compiles_late and variant not in self._compiled
        with self._compiling() if late else contextlib.nullcontext():
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

    def finish(self) -> None:
        """Wait until all queued work is done."""
        with self._queued("finishing the queued work"):
            self._queue.finish()

    def marker(self) -> Pending:
        """A point in the queue that is done once everything before it is."""
        with self._queued("marking the queue"):
            event = cl.enqueue_marker(self._queue)
            self._queue.flush()
        return Event(event, self._queued)

    # What is private

    @contextlib.contextmanager
    def _queued(self, what: str) -> Iterator[None]:
        self._refuse_if_lost()
        try:
            yield
        except cl.Error as error:
            raise self._failed(what, error) from error

    def _failed(self, what: str, error: Any) -> DeviceError | OutOfMemoryError:
        """All that follows is refused: nobody takes values of half a step for those of a step."""
        self.lost = what
        _contexts.pop(self._handle.int_ptr, None)  # which may be broken for all who share it
        return driver_errors.failure(what, status(error), _is_memory(error))

    def _refuse_if_lost(self) -> None:
        check_not_forked()
        if self.lost:
            raise driver_errors.lost(self.lost, self.info)

    def _compile(self, source: str, options: Sequence[str]) -> Any:
        if self._passes_over and not options:
            with contextlib.suppress(cl.Error):  # it comes back below, with the lines of the source
                return self._built(_declarations() + source, [PASSED_OVER])
        for attempt in (1, 2):
            try:
                return self._built(source, options)
            except cl.Error as error:
                place = current()
                if place is not None and self._compiles_late and was_removed(place):
                    if attempt == 2:
                        raise driver_errors.removed(place) from error
                    has_room(place)  # which makes it anew
                # Only a broken cache mends by itself; a fault of the source comes back.
                elif attempt == 2:
                    raise driver_errors.build_failure(source, str(error), self.info) from error
        raise AssertionError("unreachable")

    def _built(self, source: str, options: Sequence[str]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)
            try:
                return cl.Program(self._context, source).build(options=["-w", *options])
            except MemoryError as error:  # out of PoCL's compiler, which keeps the program's lock
                _keep_for_ever(error.__traceback__)
                raise

    def _kernel(self, program: Any, name: str) -> Any:
        try:
            kernel = cl.Kernel(program, name)
            _ = kernel.num_args  # NVIDIA's driver notices an unknown name only here
        except cl.Error as error:
            raise driver_errors.unnamed(name, error) from error
        _forget_wrappers()
        return kernel

    @contextlib.contextmanager
    def _compiling(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self._compiles_late:  # other drivers guard their caches themselves
                self.finish()  # so that nobody waits for our earlier work under the lock
                place = current()
                if place is None or not has_room(place):
                    raise driver_errors.no_room(place)
                stack.enter_context(locked(place / LOCK))
            began = time.process_time()  # of all threads, the driver's too, and nobody else's
            yield
            self.compiling += time.process_time() - began


# What is told by the driver, and how it fails


@cache
def _declarations() -> str:
    """What stands before a source where the driver's own header is passed over."""
    return resources.files("imgmlp.kernels").joinpath("declarations.cl").read_text("utf-8")


def _context(handle: Any, info: DeviceInfo) -> Any:
    """The context that a process's Devices of one processor or card share.

    PoCL's stays: with its last context the driver forgets its library of functions, and reads it
    again for the next program that it compiles, 0.4 s of Zen 4. Others go with their last Device,
    as each takes some of a card's memory (NVIDIA's half a gigabyte).
    """
    found = _contexts.get(handle.int_ptr)
    if found is None:
        found = _contexts[handle.int_ptr] = cl.Context([handle])
        if info.platform == PLATFORM:
            _staying.append(found)
    return found


# By the addresses of their devices; one whose queue failed is no more among them.
_contexts: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_staying: list[Any] = []  # PoCL's


_opened_by: set[int] = set()  # this process, or one that it was forked from


def check_not_forked() -> None:
    """Refuse, as a DeviceError, what would wait for ever: the threads of drivers stay behind in the
    process that opened a device, when another one is forked from it."""
    if _opened_by and os.getpid() not in _opened_by:
        raise driver_errors.forked()


def _keep_for_ever(thing: object) -> None:
    """Have it, and all that it refers to, not even released as the process ends: what waits for a
    lock that nobody gives back then, and holds Python's own, can only be killed."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _forget_wrappers() -> None:
    """Have Python forget the sources of the call wrappers that pyopencl generates for kernels.

    It keeps them for tracebacks, for ever and each under a name that is none of those before, which
    takes the longer the more there are: 16 ms a kernel with 30,000 of them. Seldom, as a thread
    that shows a traceback just then would miss them.
    """
    if len(linecache.cache) > MOST_SOURCES:
        for name in list(linecache.cache):
            if name.startswith(WRAPPER):
                linecache.cache.pop(name, None)


def _has_matrix_units(handle: Any) -> bool:
    """Whether this is a GPU with matrix units that kernels/product_matrix.cl can use."""
    try:
        major = handle.get_info(cl.device_info.COMPUTE_CAPABILITY_MAJOR_NV)
    except (cl.Error, AttributeError):  # not NVIDIA's
        return False
    return int(major) >= MATRIX_UNITS


@contextlib.contextmanager
def _running(what: str) -> Iterator[None]:
    try:
        yield
    except cl.Error as error:
        raise driver_errors.failure(what, status(error), _is_memory(error)) from error


def _is_memory(error: Any) -> bool:
    return isinstance(error, cl.MemoryError) or "OUT_OF_RESOURCES" in str(error)


def status(error: Any) -> str:
    """OpenCL's name for what happened, as one line."""
    return str(error).strip().splitlines()[0]
