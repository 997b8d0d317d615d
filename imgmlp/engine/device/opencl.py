"""Device: an OpenCL device's memory, launches and in-order queue, with errors a user can act on.

It knows no tensors, graphs or networks: given OpenCL C, sizes in bytes and preset arguments, it
launches at the lowest cost that Python allows. Building kernels is in building.py.
"""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from threading import RLock
from typing import Any

import numpy as np

from imgmlp.child import available_cores
from imgmlp.engine.device import driver_errors
from imgmlp.engine.device.base import (
    ALIGN,
    Allocation,
    Array,
    DeviceInfo,
    Event,
    FreeMemory,
    KernelHandle,
    Launch,
    Pending,
    Usage,
    check_array,
    check_fits,
    check_slice,
    counted,
)
from imgmlp.engine.device.building import KernelBuilding
from imgmlp.engine.device.compile_beside import Task, compiling_processes, process_count
from imgmlp.engine.device.driver import (
    NVIDIA,
    check_not_forked,
    cl,
    forget_context,
    has_matrix_units,
    is_memory_error,
    note_opening_process,
    running,
    shared_context,
    status,
)
from imgmlp.engine.device.pocl import peak_width, vector_width
from imgmlp.engine.device.spare import Spare
from imgmlp.engine.ir.target import Lanes
from imgmlp.errors import DeviceError, OutOfMemoryError

MAX_SLICE_ALIGN = 1 << 16  # bytes; where slices must be coarser, packing them saves little
# Freed allocations that a GPU's process keeps for reuse: bytes at most, and as a fraction of the
# device's memory, because several processes may share it and cannot ask each other for memory.
MAX_SPARE_BYTES = 1 << 28
MAX_SPARE_FRACTION = 1 / 64
LARGE = 1 << 20  # bytes of an allocation that is used at once, to see that it exists
MIN_COLD_SECONDS = 0.05  # of a first launch that had to compile because nothing was cached
_BYTE = np.zeros(1, np.uint8)
# Prefixes of an argument's type: in local memory, or in memory that the kernel only reads.
LOCAL, CONST = "__local ", "const "


def spare(info: DeviceInfo) -> int:
    """Bytes of freed allocations that are kept for reuse."""
    return min(MAX_SPARE_BYTES, int(MAX_SPARE_FRACTION * info.memory)) if info.kind == "gpu" else 0


class Device(KernelBuilding):
    """One OpenCL device with an in-order queue: commands run in the order of their enqueueing."""

    lost: str = ""  # what was being done when the queue failed; then every further use is refused

    def __init__(self, handle: Any, info: DeviceInfo):
        note_opening_process()
        super().__init__(info)
        self.lanes: Lanes = "group" if info.kind == "gpu" else "one"
        self.align: int = max(int(handle.mem_base_addr_align) // 8, ALIGN)  # bytes
        self.max_allocation = int(handle.max_mem_alloc_size)  # bytes
        self.has_matrix_units = has_matrix_units(handle)
        self.max_lanes = int(handle.max_work_group_size)  # work-items of a group
        self._handle = handle
        self.vector_width = vector_width(info.platform, info.compiled_for)  # floats
        self.peak_width = peak_width(info.platform, info.compiled_for)  # floats, of bench alone
        self._compiled: set[tuple[object, ...]] = set()
        with running("opening the device"):
            self._context = shared_context(handle, info)
            self._queue = cl.CommandQueue(self._context)
        self._timing_queue: Any = None
        self._side_queue: Any = None
        self.usage = Usage()
        # Held while a step is enqueued, so that the steps of several threads do not interleave.
        self.enqueue_lock = RLock()
        self.spare = Spare(spare(info))
        self.can_slice = info.platform != NVIDIA and self._try_to_slice()
        if not self.can_slice:
            self.align = ALIGN

    @property
    def joins_kernels(self) -> bool:
        """Whether a launch may consist of several kernels. PoCL 3 miscompiles barriers between
        lanes inside of loops and branches."""
        return self.lanes == "one" or not self._compiles_late

    @property
    def keeps_groups(self) -> bool:
        """Whether work-groups may stay for several steps. They must see each other's stores at
        once, which OpenCL does not promise; PoCL's work-groups are threads of the host."""
        return self.lanes == "one" and self._compiles_late

    @property
    def has_queues(self) -> bool:
        """Whether launches of two queues run concurrently, so that small ones can fill a device."""
        return self.lanes == "group"

    # Memory

    def alloc(self, nbytes: int) -> Allocation:
        """Reserve `nbytes` bytes of undefined content. Raises OutOfMemoryError."""
        left = self.info.memory - self.usage.live_bytes
        if nbytes > min(self.max_allocation, left):
            raise driver_errors.does_not_fit(nbytes, self.max_allocation, self.info)
        size = max(nbytes, self.align)
        buffer = self.spare.take(size) or self._buffer(size)
        allocation = counted(buffer, nbytes, self.usage)
        if self.spare.most:
            weakref.finalize(allocation, self.spare.give, size, buffer).atexit = False
        return allocation

    def _buffer(self, size: int) -> Any:
        try:
            buffer = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size=size)
            if size >= LARGE:  # drivers may reserve the memory only at its first use
                cl.enqueue_copy(self._queue, buffer, _BYTE, is_blocking=False)
            return buffer
        except cl.Error as error:
            if is_memory_error(error):
                if self.spare.clear() or self._dismiss_builders():
                    return self._buffer(size)
                raise driver_errors.does_not_fit(size, self.max_allocation, self.info) from error
            raise driver_errors.failure("allocating memory", status(error), False) from error

    def free_memory(self) -> FreeMemory:
        """The memory that alloc() can still give, found by allocating it.

        OpenCL has no query that includes what other processes use. Pieces below LARGE are not
        tried, and the largest piece is found to within an eighth.
        """
        held: list[Allocation] = []
        self._dismiss_builders()
        self.spare.clear()
        size = min(self.max_allocation, self.info.memory)
        while size >= LARGE:
            try:
                held.append(self.alloc(size))
            except OutOfMemoryError:
                size -= max(1, size // 8)
        free = FreeMemory(sum(a.nbytes for a in held), max((a.nbytes for a in held), default=0))
        held.clear()
        self.spare.clear()
        return free

    def _try_to_slice(self) -> bool:
        """Whether the driver supports sub-buffers, at an alignment that wastes little."""
        if self.align > MAX_SLICE_ALIGN:
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
        with running("slicing an allocation"):
            region = root.handle.get_sub_region(start, max(nbytes, 1))
        return Allocation(region, nbytes, root, start)

    def write_async(self, allocation: Allocation, array: Array) -> Pending:
        return self._transfer("writing to the device", allocation, array)

    def staging(self, shape: tuple[int, ...], kind: Any) -> Array:
        """A host array of undefined content for write_async(), pinned if the driver can do that."""
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

    def parameters(self, kernel: KernelHandle) -> list[tuple[str, str]]:
        """Type and name of each argument; types may begin with LOCAL or CONST.

        Both are empty unless the kernel was built with -cl-kernel-arg-info.
        """
        own, info = kernel.kernel, cl.kernel_arg_info
        ask, places = own.get_arg_info, range(own.num_args)
        local, const = cl.kernel_arg_address_qualifier.LOCAL, cl.kernel_arg_type_qualifier.CONST

        def kind(i: int) -> str:
            before = CONST if ask(i, info.TYPE_QUALIFIER) & const else ""
            before = LOCAL if ask(i, info.ADDRESS_QUALIFIER) == local else before
            return before + str(ask(i, info.TYPE_NAME).replace(" ", ""))

        try:
            return [(kind(i), ask(i, info.NAME)) for i in places]
        except cl.Error:
            return [("", "")] * len(places)

    def shortage(self, kernel: KernelHandle, lanes: int) -> str | None:
        """What resource a work-group of `lanes` work-items exceeds, in words; None if none."""
        own, info = kernel.kernel, cl.kernel_work_group_info
        try:
            local = int(own.get_work_group_info(info.LOCAL_MEM_SIZE, self._handle))
            most = int(own.get_work_group_info(info.WORK_GROUP_SIZE, self._handle))
        except cl.Error:  # unknown until it is launched
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
        """A Launch with its own kernel object, and its arguments: allocations and NumPy scalars.

        Without a `local_size`, PoCL compiles again for every global size.
        """
        try:
            own = kernel.free.pop()
        except IndexError:
            own = self._kernel(kernel.program, kernel.name)
        if own.num_args != len(args):
            what = f"kernel {kernel.name} takes {own.num_args} arguments"
            raise driver_errors.fault(f"{what}, {len(args)} were given")
        with running(f"setting the arguments of {kernel.name}"):
            own.set_args(*(a.handle if isinstance(a, Allocation) else a for a in args))
        return Launch(kernel, own, global_size, local_size, list(args))

    def release(self, launch: Launch) -> None:
        """Return the kernel object of a launch that is finished and will not be enqueued again.

        bind() reuses it; making a new one takes pyopencl 0.4 ms.
        """
        own, launch.kernel = launch.kernel, None
        assert own is not None, f"{launch.handle.name} is released twice"
        launch.handle.free.append(own)

    def bind_again(self, launch: Launch, number: int, allocation: Allocation) -> None:
        """Replace one argument, for everything that is enqueued from now on."""
        with running(f"setting an argument of {launch.handle.name}"):
            launch.kernel.set_arg(number, allocation.handle)
        launch.kept[number] = allocation

    def launch_all(self, launches: Sequence[Launch]) -> None:
        """Enqueue launches in order and return at once."""
        self._refuse_if_lost()
        self._enqueue(launches, self._queue)

    def launch_beside(self, launches: Sequence[Launch], begin: int, end: int, join: int) -> None:
        """As launch_all(), but launches `begin` to `end` run concurrently with `end` to `join`."""
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
        """Enqueue launches in order, the first after an event of another queue.

        Returns the event of the last one.
        """
        enqueue, event = cl.enqueue_nd_range_kernel, None
        wait_for = None if after is None else [after]
        try:
            for number, launch in enumerate(launches):
                if not launch.compiled:
                    return self._enqueue_first(launches[number:], queue)
                sizes = launch.global_size, launch.local_size
                event = enqueue(queue, launch.kernel, *sizes, None, wait_for)
                wait_for = None
        except cl.Error as error:
            raise self._failed(f"launching kernel {launch.handle.name}", error) from error
        return event

    def _enqueue_first(self, launches: Sequence[Launch], queue: Any) -> Any:
        """Enqueue launches of which the first is not compiled yet, and return the last one's event.

        Where compiling turns out to take long, other processes help.
        """
        event = None
        with contextlib.ExitStack() as stack:
            helped = not self._compiles_late
            for number, launch in enumerate(launches):
                before = self.compiling
                try:
                    event = self._launch_first(launch, queue)
                except cl.Error as error:
                    raise self._failed(f"launching kernel {launch.handle.name}", error) from error
                if not helped and self.compiling - before > MIN_COLD_SECONDS:
                    stack.enter_context(self._compiling_beside(launches[number + 1 :]))
                    helped = True
        return event

    def _compiling_beside(self, launches: Sequence[Launch]) -> AbstractContextManager[Any]:
        """Other processes that compile later launches, of the program with most of the kernels."""
        tasks: dict[Any, dict[KernelHandle, Task]] = {}
        for launch in launches:
            handle = launch.handle
            if (handle, launch.global_size, launch.local_size) not in self._compiled:
                tasks.setdefault(handle.program, {})[handle] = Task.of(launch)
        program = max(tasks, key=lambda each: len(tasks[each]), default=None)
        own = list(tasks.get(program, {}).values())
        built_from = (key for key, built in self._programs.items() if built is program)
        count = process_count(len(own), min(self.info.compute_units, available_cores()))
        return compiling_processes(self.info.spec, *next(built_from, ("", ())), own, count)

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
        """Launch; if the driver compiles at the first launch, wait until that is done."""
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

    @contextlib.contextmanager
    def _queued(self, what: str) -> Iterator[None]:
        self._refuse_if_lost()
        try:
            yield
        except cl.Error as error:
            raise self._failed(what, error) from error

    def _failed(self, what: str, error: Any) -> DeviceError | OutOfMemoryError:
        """The error to raise. The device is lost from now on, because a step may be half done."""
        self.lost = what
        forget_context(self._handle)  # it may be broken for all who share it
        return driver_errors.failure(what, status(error), is_memory_error(error))

    def _refuse_if_lost(self) -> None:
        check_not_forked()
        if self.lost:
            raise driver_errors.lost(self.lost, self.info)
